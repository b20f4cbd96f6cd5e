// A CPU channel among all ranks of a job, for votes. It never touches the training job's own
// collectives.
#ifndef EPLB_CLIENT_ROWS_CONTROL_CONTROL_CHANNEL_H_
#define EPLB_CLIENT_ROWS_CONTROL_CONTROL_CHANNEL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "placement/ids.h"

namespace eplb {

// The one collective a trainer must bring: everybody's bytes, in rank order.

// Called by every rank the same number of times in the same order; blocks until all have called,
// with a deadline of its own. A torch store, MPI_Allgather, MakeTcpAllGather or the daemon's
// rendezvous can stand behind it.
using AllGather = std::function<absl::StatusOr<std::vector<std::string>>(std::string_view bytes)>;

// Collectives: every rank calls the same verbs in the same order. Threads: one caller at a time.
// A failed collective breaks the channel for good: every later call returns the same error.
class ControlChannel {
 public:
  virtual ~ControlChannel() = default;
  virtual RankId rank() const = 0;
  virtual int32_t world_size() const = 0;

  // The element-wise minimum over all ranks. values: the same length (1..64) on every rank.
  // errors: InvalidArgument for a length out of range (the channel stays whole); Aborted when a
  // rank is gone, another verb or length came, or `timeout` passed; the message names the ranks and
  // MissingRanks() gives them. Returns within `timeout` plus a few seconds that
  // let the names travel.
  virtual absl::StatusOr<std::vector<int64_t>> AllReduceMin(std::span<const int64_t> values,
                                                            absl::Duration timeout) = 0;
  // errors: as AllReduceMin.
  virtual absl::Status Barrier(absl::Duration timeout) = 0;
  // The Barrier of ranks that end. Ranks that make another call instead are told that those of this
  // one have closed. errors: as AllReduceMin.
  virtual absl::Status Farewell(absl::Duration timeout) = 0;
};

// The ranks that an error of a ControlChannel blames, rising; empty for other errors.
std::vector<RankId> MissingRanks(const absl::Status& status);
// An Aborted status that carries `ranks`: "vote: ranks 3, 5 are missing: connection closed".
absl::Status MissingRanksError(std::string_view what, std::span<const RankId> ranks,
                               std::string_view why);

struct TcpControlOptions {
  RankId rank;
  int32_t world_size = 1;
  std::string bind_address = "127.0.0.1";  // numeric address of the interface that peers reach
  std::string host;    // this rank's, equal on ranks of one host; empty: BootId()
  std::string secret;  // per run; a peer that cannot prove it is dropped
  absl::Duration connect_timeout = absl::Seconds(60);
  // After a failure: what one level of the tree is given to name the missing ranks.
  absl::Duration grace = absl::Milliseconds(500);
};

// Connects the ranks in a tree. Collective: calls `all-gather` once, for the addresses.
// errors: InvalidArgument for an empty secret or an address that peers cannot reach;
// FailedPrecondition, equal on all ranks, for a loopback address in a job of several hosts;
// DeadlineExceeded naming the ranks that did not come; Unavailable when the address cannot be
// bound.
absl::StatusOr<std::unique_ptr<ControlChannel>> MakeTcpControlChannel(
    const TcpControlOptions& options, const AllGather& all_gather);

}  // namespace eplb

#endif  // EPLB_CLIENT_ROWS_CONTROL_CONTROL_CHANNEL_H_
