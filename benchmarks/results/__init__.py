"""Results as data: rows, raw outcomes, and the pages rendered from them."""
