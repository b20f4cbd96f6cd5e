// A bench's job on a running daemon: all its ranks say Hello, report, and answer proposals.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "tests/tools/bench/fleet.h"
#include "tests/tools/bench/messages.h"

#include "eplb/v1/query.grpc.pb.h"

namespace eplb::bench {

// When each rank of a job had its PREPARED for one proposal on its way.
struct FanOut {
  int64_t version = 0;
  std::string digest;
  size_t message_bytes = 0;
  std::vector<absl::Time> ready = {};               // [world_size]
  absl::Time all_counted = absl::InfiniteFuture();  // the daemon had every PREPARED
};

// Threads: one caller.
class JobDriver {
 public:
  struct Options {
    std::string target;  // address of the daemon
    BenchJob job;
    int num_connections = 1;
    int num_threads = 2;
    bool frozen = false;  // its ranks say Hello and report, and never read
  };
  explicit JobDriver(Options options);

  // Every rank says Hello. Returns once the job is IDLE. errors: DeadlineExceeded, or what a rank
  // was refused with.
  absl::Status Start(absl::Duration timeout);

  // Every rank sends its windows as fast as the daemon reads them. Returns once the daemon has
  // summed the last one, with report.min_coverage = 1 those of all ranks. errors: DeadlineExceeded.
  absl::Status Ingest(int64_t num_windows, const LoadMatrix& counts, absl::Duration timeout);

  // Every rank says Goodbye; returns once the daemon has ended all streams.
  absl::Status Leave(absl::Duration timeout);
  // One window from the first `num_reporters` ranks.
  void Report(const LoadMatrix& counts, int num_reporters);
  // Every rank has answered the next proposal PREPARED, and the daemon counted it.
  absl::StatusOr<FanOut> WaitForFanOut(absl::Duration timeout);
  // Every rank says Applied; returns once the daemon has committed.
  absl::Status Apply(const FanOut& fan_out, absl::Duration timeout);

  absl::StatusOr<v1::JobStatus> Status() const;
  int num_ended() const { return options_.job.world_size - fleet_->num_open(); }

 private:
  void OnMessage(int rank, const grpc::ByteBuffer& bytes);
  void OnPropose(int rank, const grpc::ByteBuffer& bytes);
  void OnEnd(int rank, const grpc::Status& status);
  absl::Status WaitForStatus(const std::string& what, absl::Duration timeout,
                             const std::function<bool(const v1::JobStatus&)>& done) const;

  const Options options_;
  std::unique_ptr<v1::Query::Stub> query_;
  int64_t next_window_ = 0;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  int num_welcomed_ = 0;
  int num_written_ = 0;  // messages
  absl::Status refusal_;
  grpc::ByteBuffer propose_;  // the newest one, and the answer to it
  grpc::ByteBuffer answer_;
  FanOut fan_out_;
  int num_ready_ = 0;
  std::unique_ptr<Fleet> fleet_;  // last: its threads use the members above
};

}  // namespace eplb::bench
