// The demonstration trainer: one rank of a job that replays a recorded router trace with real
// expert memory.
#ifndef EPLB_DEPLOY_EXAMPLES_REPLAY_TRAINER_TRAINER_H_
#define EPLB_DEPLOY_EXAMPLES_REPLAY_TRAINER_TRAINER_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "client/client.h"
#include "deploy/examples/replay_trainer/step_loads.h"

namespace eplb {

struct TrainerOptions {
  int32_t rank = 0;
  int32_t world_size = 1;  // one GPU position per rank
  std::string endpoint;    // of eplbd, or a list; empty: no daemon, --rendezvous is then needed
  DaemonTls tls;           // of the connections to eplbd
  std::string rendezvous;  // HOST:PORT of rank 0; empty: through the daemon
  std::string job = "demo";
  std::string launch_id;   // ClientOptions::run
  bool take_over = false;  // as ClientOptions
  std::string trace_path;
  int64_t num_steps = 0;
  int32_t num_slots = 0;  // 0: as many as experts
  int32_t num_nodes = 1;
  int32_t num_groups = 1;
  std::string transport = "auto";
  std::string expert_memory = "auto";  // or "gpu", the only value with experts on a GPU
  absl::Duration step_time =
      absl::ZeroDuration();  // of a perfectly balanced step; a real one lasts that / balancedness
  int32_t parameters_per_expert = 1024;
  bool frozen = false;  // steps change no expert, all tensors are weights: ClientOptions::ahead
  int32_t vote_every = 8;
  int32_t report_every = 50;
  std::string reduce = "rank";             // as ClientOptions
  std::string split = "equal";             // as ClientOptions; with "batch" a step is one batch
  std::string bind_address = "127.0.0.1";  // that other ranks reach this one at
  std::string stop_path;  // when rank 0 sees this file, the job ends well after that step
  std::optional<int64_t> hang_at_step;  // this rank does nothing for hang_time before it
  absl::Duration hang_time = absl::Seconds(3);
  std::optional<int64_t> fork_at_step;  // forks a child that uses the client, as data loaders do
  std::string initial_placement;
  std::string log_dir;      // rank-R.jsonl, and from rank 0 placements.jsonl and loads.jsonl
  std::string report_path;  // rank 0 writes the run's report here
  absl::Duration start_deadline = absl::Seconds(60);
  absl::Duration step_deadline =
      absl::Seconds(60);  // how long a rank waits for the others in a step
  absl::Duration vote_deadline = absl::Seconds(600);
  SlowRank slow_rank;          // its steps last longer, as those of a slow GPU
  bool show_progress = false;  // rank 0 says on stderr how far it is
};

// Checks the numbers that are wrong for any trace. errors: InvalidArgument naming the flag.
absl::Status CheckTrainerOptions(const TrainerOptions& options);

// Runs the job to its end on this rank. errors: DataLoss when a byte of expert memory is not what
// recomputation gives or the ranks ran different placements; Aborted naming the ranks that are
// gone; InvalidArgument for options and trace; FailedPrecondition if expert memory is on a GPU and
// there is none.
absl::Status RunTrainer(const TrainerOptions& options);

}  // namespace eplb

#endif  // EPLB_DEPLOY_EXAMPLES_REPLAY_TRAINER_TRAINER_H_
