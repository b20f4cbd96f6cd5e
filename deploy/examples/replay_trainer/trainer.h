// The demonstration trainer: one rank of a job that replays a recorded router trace with real
// expert memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "client/client.h"
#include "deploy/examples/replay_trainer/step_loads.h"

namespace eplb {

struct TrainerOptions {
  // num_layers, num_experts, num_gpus and the logs follow from the others; num_slots is 0 for as
  // many slots as experts. With ahead, steps change no expert, and all tensors are weights.
  ClientOptions client;
  std::string rendezvous;  // HOST:PORT of rank 0; empty: the ranks meet through the daemon
  std::string trace_path;
  int64_t num_steps = 0;
  std::string expert_memory = "auto";  // or "gpu", the only value with experts on a GPU
  // Time of a perfectly balanced step; a real one lasts that / balancedness.
  absl::Duration step_time = absl::ZeroDuration();
  int32_t parameters_per_expert = 1024;
  std::string stop_path;  // the job ends after the step at which rank 0 sees this file
  std::optional<int64_t> hang_at_step;  // this rank does nothing for hang_time before it
  absl::Duration hang_time = absl::Seconds(3);
  std::optional<int64_t> fork_at_step;  // forks a child that uses the client, as data loaders do
  std::string log_dir;      // for rank-R.jsonl, and from rank 0 placements.jsonl and loads.jsonl
  std::string report_path;  // rank 0 writes the run's report here
  absl::Duration step_deadline = absl::Seconds(60);  // a rank waits for the others in a step
  SlowRank slow_rank;          // its steps last longer, as those of a slow GPU
  bool show_progress = false;  // rank 0 prints its progress on stderr
};

// Checks the numbers that are wrong for any trace. errors: InvalidArgument naming the flag.
absl::Status CheckTrainerOptions(const TrainerOptions& options);

// Runs the job to its end on this rank. errors: DataLoss when a byte of expert memory is not what
// recomputation gives or the ranks ran different placements; Aborted naming the ranks that are
// gone; InvalidArgument for options and trace; FailedPrecondition if expert memory is on a GPU and
// there is none.
absl::Status RunTrainer(TrainerOptions options);

}  // namespace eplb
