"""What only makes CPUs faster: skip it when you read how something works."""
