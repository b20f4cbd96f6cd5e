// All ranks of a job send the same windows, and none runs away from the slowest.
#ifndef EPLB_TESTS_TOOLS_BENCH_WINDOW_FLOW_H_
#define EPLB_TESTS_TOOLS_BENCH_WINDOW_FLOW_H_

#include <mutex>
#include <vector>

#include <grpcpp/support/byte_buffer.h>

#include "tests/tools/bench/fleet.h"

namespace eplb::bench {

// A rank sends window k once every rank has written window k - kMaxAhead: the daemon keeps four
// windows that are not complete. Threads: safe.
class WindowFlow {
 public:
  static constexpr size_t kMaxAhead = 2;

  explicit WindowFlow(int num_ranks) : written_by_(static_cast<size_t>(num_ranks)) {}

  // REQUIRES: what was begun before is written.
  void Begin(Fleet& fleet, std::vector<grpc::ByteBuffer> windows);
  // Of a rank's next window.
  void OnWritten(Fleet& fleet, int rank);

 private:
  std::mutex mutex_;                       // guards what follows
  std::vector<grpc::ByteBuffer> windows_;  // empty before Begin
  std::vector<size_t> written_by_;         // [ranks], windows
  std::vector<size_t> ranks_done_;         // [windows]
  std::vector<int> waiting_;               // ranks; they all wait for the same window
};

}  // namespace eplb::bench

#endif  // EPLB_TESTS_TOOLS_BENCH_WINDOW_FLOW_H_
