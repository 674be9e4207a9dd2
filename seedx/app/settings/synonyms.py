"""Names of settings in other libraries, for hints about unknown flags."""

from collections.abc import Mapping

# Names of each setting in CleanRL, Stable-Baselines3, RLlib, Acme and others.
NAMES: Mapping[str, str] = {
  "total_steps": "timesteps total_timesteps num_timesteps total_env_steps",
  "env": "env_id env_name environment gym_id task",
  "num_envs": "n_envs num_env num_vec_envs",
  "envs_per_actor": "num_envs n_envs num_envs_per_env_runner",
  "envs_per_worker": "num_envs n_envs num_envs_per_worker",
  "num_actors": "n_actors num_workers num_env_runners num_rollout_workers",
  "log_info": "info_keywords",
  "run_dir": "log_dir logdir output_dir save_dir tensorboard_log",
  "sink": "track use_wandb wandb_project_name logger",
  "stop_at": "stop_reward target_return",
  "checkpoint_every_seconds": "save_freq checkpoint_freq checkpoint_interval",
  "keep_checkpoints": "num_to_keep max_to_keep save_total_limit",
  "keep_every_steps": "keep_period keep_checkpoint_every",
  "evaluate_every_steps": "eval_freq eval_every evaluation_interval",
  "checkpoint_replay_gib": "save_replay_buffer save_buffer",
  "record_video": "capture_video video save_video render_freq",
  "evaluate_episodes": "n_eval_episodes num_eval_episodes eval_episodes",
  "learning_rate": (
    "lr alpha step_size policy_lr actor_lr policy_learning_rate pi_lr"
  ),
  "learning_rate_end": "anneal_lr lr_schedule",
  "max_gradient_norm": "max_grad_norm grad_clip grad_norm_clipping",
  "discount": "gamma",
  "hidden_sizes": "net_arch policy_kwargs hidden_dim fcnet_hiddens",
  "activation": "activation_fn fcnet_activation",
  "stack_frames": "frame_stack n_stack num_stack",
  "normalize_observations": "norm_obs normalize_obs",
  "normalize_rewards": "norm_reward",
  "recurrent": "use_lstm lstm use_rnn",
  "lstm_size": "lstm_hidden_size lstm_cell_size hidden_size rnn_hidden_size",
  "unroll_length": "n_steps num_steps rollout_length rollout_fragment_length",
  "td_lambda": "gae_lambda lam lambda_ lmbda",
  "entropy_cost": "ent_coef entropy_coef entropy_coeff ent_weight",
  "value_cost": "vf_coef vf_loss_coeff value_coef baseline_cost critic_coef",
  "clip_epsilon": "clip_range clip_coef clip_param clip_ratio clip_eps",
  "clip_values": "clip_vloss clip_range_vf vf_clip_param",
  "clip_rho_threshold": "vtrace_clip_rho_threshold rho_bar",
  "epochs": "n_epochs num_epochs update_epochs num_sgd_iter ppo_epochs",
  "minibatches": "batch_size num_minibatches minibatch_size sgd_minibatch_size",
  "n_step": "n_steps multi_step",
  "target_period": (
    "target_update_interval target_update_period target_network_frequency"
    " target_network_update_freq target_update_freq"
  ),
  "target_rate": "tau polyak",
  "critic_learning_rate": "q_lr critic_lr qf_lr qf_learning_rate value_lr",
  "num_critics": "n_critics num_qs num_q_functions",
  "actor_period": "policy_freq policy_frequency policy_delay actor_update_freq",
  "noise_scale": "exploration_noise expl_noise action_noise act_noise sigma",
  "noise_correlation": "ou_theta theta use_sde gsde sde_sample_freq",
  "target_noise": "policy_noise target_policy_noise target_sigma",
  "action_gradient_clip": "dqda_clipping dqda_clip",
  "temperature": "alpha ent_coef init_temperature initial_alpha",
  "temperature_learning_rate": (
    "autotune auto_entropy automatic_entropy_tuning alpha_lr"
  ),
  "target_entropy_share": "target_entropy_scale",
  "epsilon_steps": (
    "exploration_fraction eps_decay epsilon_decay epsilon_timesteps"
  ),
  "epsilon_end": "exploration_final_eps end_e eps_end final_epsilon",
  "num_atoms": "n_atoms atoms",
  "value_min": "v_min vmin",
  "value_max": "v_max vmax",
  "replay_capacity": "buffer_size replay_size memory_size replay_buffer_size",
  "replay_min_steps": (
    "learning_starts min_replay_size warmup_steps start_timesteps start_steps"
  ),
  "replay_batch_size": "batch_size train_batch_size",
  "replay_ratio": (
    "train_freq train_frequency gradient_steps samples_per_insert utd_ratio"
  ),
  "priority_exponent": "prioritized_replay_alpha per_alpha",
  "importance_exponent": "prioritized_replay_beta per_beta",
  "learner_devices": "device cuda gpus num_gpus num_learners",
}


def of(name: str) -> list[str]:
  """Returns the settings that have this name in other libraries."""
  return [setting for setting, names in NAMES.items() if name in names.split()]
