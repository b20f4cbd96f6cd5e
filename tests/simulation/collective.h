// The ranks' channel for votes, with results that get lost and ranks that are gone.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"

#include "tests/simulation/context.h"

namespace eplb::simulation {

// Acts as AllReduceMin of client/rows/control: the n-th calls of all ranks belong together. Once it
// is broken, or once a result was lost, no call has a result any more.
class Collective {
 public:
  using Values = std::vector<int64_t>;
  using Done = std::function<void(const absl::StatusOr<Values>&)>;

  Collective(Context* context, int num_ranks);

  // Calls `done` later, once, with the element-wise minimum or an error.
  void AllReduceMin(int rank, Values values, Done done);
  // A rank is gone.
  void Break();

 private:
  struct Round {
    std::vector<Values> values;
    std::vector<Done> done;
    int num_joined = 0;
  };

  void Finish(Round& round);
  void Fail(Done done, absl::Duration after);

  Context& context_;
  const int num_ranks_;
  std::vector<size_t> next_round_;  // by rank
  std::deque<Round> rounds_;
  bool broken_ = false;
};

}  // namespace eplb::simulation
