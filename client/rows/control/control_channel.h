// A CPU channel among all ranks of a job, for votes. It never touches the training job's own
// collectives.
#pragma once

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

// The one collective that a trainer must provide: returns the bytes of all ranks, in rank order.
// Every rank calls it the same number of times in the same order. It blocks until all have called,
// with a deadline of its own. A torch store, MPI_Allgather, MakeTcpAllGather or the daemon's
// rendezvous can implement it.
using AllGather = std::function<absl::StatusOr<std::vector<std::string>>(std::string_view bytes)>;

// Returns the bytes of all ranks. errors: FailedPrecondition beginning with `what` for another
// number of answers than ranks; those of the all-gather.
absl::StatusOr<std::vector<std::string>> GatherAll(const char* what, std::string_view bytes,
                                                   int32_t world_size, const AllGather& all_gather);

// Collectives: every rank calls the same verbs in the same order. Threads: one caller at a time.
// A failed collective breaks the channel for good: every later call returns the same error.
class ControlChannel {
 public:
  virtual ~ControlChannel() = default;
  virtual RankId rank() const = 0;
  virtual int32_t world_size() const = 0;

  // Returns the element-wise minimum over all ranks. values: the same length [1, 64] on every rank.
  // Returns within `timeout` plus a few seconds in which the names of missing ranks travel. errors:
  // InvalidArgument for a length out of range (the channel stays whole); Aborted if a rank is lost
  // or called another verb or length, or after `timeout`; MissingRanks() returns the ranks that the
  // message names.
  virtual absl::StatusOr<std::vector<int64_t>> AllReduceMin(std::span<const int64_t> values,
                                                            absl::Duration timeout) = 0;
  // errors: see AllReduceMin.
  virtual absl::Status Barrier(absl::Duration timeout) = 0;
  // A Barrier of ranks that end. The error of ranks that make another call instead reports that the
  // ranks of this one have closed. errors: see AllReduceMin.
  virtual absl::Status Farewell(absl::Duration timeout) = 0;
};

// Returns the ranks that an error of a ControlChannel blames, rising; empty for other errors.
std::vector<RankId> MissingRanks(const absl::Status& status);
// Returns an Aborted status that carries `ranks`: "vote: ranks 3, 5 are missing: connection
// closed".
absl::Status MissingRanksError(std::string_view what, std::span<const RankId> ranks,
                               std::string_view why);

struct TcpControlOptions {
  RankId rank;
  int32_t world_size = 1;
  std::string bind_address = "127.0.0.1";  // numeric address of the interface that peers reach
  std::string host;    // name of this rank's host, equal on its ranks; default BootId()
  std::string secret;  // per run; a peer that cannot prove it is dropped
  absl::Duration connect_timeout = absl::Seconds(60);
  // Time of one level of the tree to name the missing ranks after a failure.
  absl::Duration grace = absl::Milliseconds(500);
};

// Connects the ranks in a tree. Collective: calls `all-gather` once, for the addresses.
// errors: InvalidArgument for an empty secret or an address that peers cannot reach;
// FailedPrecondition, equal on all ranks, for a loopback address in a job of several hosts;
// DeadlineExceeded naming the missing ranks; Unavailable if the address cannot be bound.
absl::StatusOr<std::unique_ptr<ControlChannel>> MakeTcpControlChannel(
    const TcpControlOptions& options, const AllGather& all_gather);

}  // namespace eplb
