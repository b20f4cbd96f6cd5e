// Commands of eplb-bench. Each command starts the servers that it needs, on loopback, and
// returns its figures.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include <nlohmann/json.hpp>

namespace eplb::bench {

struct Options {
  std::string eplbd;  // the daemon's program; empty: beside this one
  int num_sessions = 64;
  int num_connections = 0;  // 0: one per session
  int num_threads = 2;      // threads of the load generator
  int num_layers = 58;
  int num_experts = 256;
  int num_slots = 288;
  int num_gpus = 16;
  int num_windows = 200;  // per session and round
  int num_rounds = 5;
  int num_frozen = 208;
  int num_jobs = 200;
  absl::Duration hold = absl::Seconds(10);
};

// {"rounds":[{"raw_reports_per_s","reports_per_s",..}],"ratio":median of the rounds' ratios,..}
absl::StatusOr<nlohmann::ordered_json> MeasureIngest(const Options& options);
// {"rounds":[{"ready_p50_s","ready_p99_s","ready_max_s","all_acks_s"}],"all_acks_p99_s",..}
absl::StatusOr<nlohmann::ordered_json> MeasureFanOut(const Options& options);
// {"sessions","bytes_per_session","lost",..}
absl::StatusOr<nlohmann::ordered_json> MeasureSessions(const Options& options);
// {"rounds":[{"cpu_s","proposed_s","message_bytes"}],..}
absl::StatusOr<nlohmann::ordered_json> MeasureDecide(const Options& options);
// {"resident_bytes_most","resident_bytes_after",..}
absl::StatusOr<nlohmann::ordered_json> MeasureJobs(const Options& options);
// {"without":{..as fanout..},"with":{..},"ratio"}
absl::StatusOr<nlohmann::ordered_json> MeasureFrozen(const Options& options);

}  // namespace eplb::bench
