#include "tests/simulation/collective.h"

#include <algorithm>
#include <utility>

namespace eplb::simulation {
namespace {

constexpr double kLostResult = 0.002;
constexpr absl::Duration kVoteDeadline = absl::Seconds(60);

}  // namespace

Collective::Collective(Context* context, int num_ranks)
    : context_(*context), num_ranks_(num_ranks), next_round_(num_ranks) {}

void Collective::AllReduceMin(int rank, Values values, Done done) {
  if (broken_) {
    Fail(std::move(done), absl::Seconds(1));
    return;
  }
  const size_t index = next_round_[rank]++;
  if (index == rounds_.size()) {
    rounds_.push_back(
        {.values = std::vector<Values>(num_ranks_), .done = std::vector<Done>(num_ranks_)});
  }
  Round& round = rounds_[index];
  round.values[rank] = std::move(values);
  round.done[rank] = std::move(done);
  if (++round.num_joined == num_ranks_) Finish(round);
}

void Collective::Finish(Round& round) {
  Values minimum = round.values[0];
  for (const Values& values : round.values) {
    if (values.size() != minimum.size()) {
      context_.Violation("ranks take part in different votes at once");
      return;
    }
    for (size_t i = 0; i < values.size(); ++i) minimum[i] = std::min(minimum[i], values[i]);
  }
  const bool lossy = context_.faults && context_.Chance(kLostResult);
  if (lossy) context_.Count("vote_result_lost");
  for (Done& done : round.done) {
    const absl::Duration after = context_.Between(absl::Microseconds(50), absl::Milliseconds(50));
    if (lossy && context_.Chance(0.5)) {
      broken_ = true;
      Fail(std::move(done), kVoteDeadline);
      continue;
    }
    context_.After(after, [done = std::move(done), minimum] { done(minimum); });
  }
}

void Collective::Break() {
  broken_ = true;
  for (Round& round : rounds_) {
    if (round.num_joined == num_ranks_) continue;
    for (Done& done : round.done) {
      if (done) Fail(std::exchange(done, nullptr), absl::Seconds(1));
    }
  }
}

void Collective::Fail(Done done, absl::Duration after) {
  context_.After(after,
                 [done = std::move(done)] { done(absl::AbortedError("a rank did not vote")); });
}

}  // namespace eplb::simulation
