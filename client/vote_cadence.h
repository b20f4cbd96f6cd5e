// Which steps of a run end with a vote. Ranks agree on it without a message of its own: each rank
// adds to a vote the number of steps until the next one that it wants, and the smallest holds.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "proto/wire/messages.h"

namespace eplb {

// The first step of a run votes, and then the one that the newest vote gave. While no rank expects
// a proposal, that is the next step whose number plus one is a multiple of vote_every. A job that
// stages rows ahead votes at these multiples only, because its rows move beside the steps between
// two votes. Threads: the training thread.
class VoteCadence {
 public:
  // Steps after the start of a run, and after each switch, in which a rank with a daemon waits for
  // a proposal: while loads change, a placement is seldom the last one.
  static constexpr int64_t kActiveSteps = 32;
  static constexpr int64_t kMostVotes = 128;  // votes in a row because of one proposal

  // vote_every: most steps from a vote to the next, >= 1. first_step: first of the run.
  VoteCadence(int32_t vote_every, int64_t first_step)
      : vote_every_(vote_every), next_(first_step), waits_until_(first_step + kActiveSteps) {}

  // Sets whether rows are staged ahead from now on, as all ranks agreed.
  void SetAhead(bool ahead) {
    ahead_ = ahead;
    if (ahead) next_ += Idle(next_ - 1) - 1;
  }

  bool VotesAt(int64_t step) const { return step == next_; }

  // Returns the number of steps from the vote after `step` to the next vote that this rank wants. A
  // known proposal is voted on after each step. A rank that waits for one wants votes 1, 2, 4, ..
  // steps after the end of a load window, because the daemon decides when a window ends.
  // knows_proposal: the daemon's newest proposal is neither applied nor dropped. It counts for
  // kMostVotes steps, because the daemon may be gone. has_daemon: a daemon may propose something.
  // report_every: steps in a load window.
  int64_t Wants(int64_t step, bool knows_proposal, bool has_daemon, int32_t report_every) {
    if (!knows_proposal) known_since_ = -1;
    if (knows_proposal && known_since_ < 0) known_since_ = step;
    if (knows_proposal && step - known_since_ < kMostVotes) return 1;
    if (!has_daemon || step >= waits_until_) return Idle(step);
    return chunk_follows_ ? 1 : WantsDecision(step, report_every);
  }

  // Returns the same for the second vote, if it is for the switch. The next chunk of a decision is
  // proposed at once. After the last one the decision on the next window is waited for.
  static int64_t WantsAfterSwitch(int64_t step, const wire::Propose& switched,
                                  int32_t report_every) {
    if (!IsLastChunk(switched)) return 1;
    const bool is_on_newest = switched.decided_last_step + Age(step, report_every) >= step;
    return is_on_newest ? ToNextWindow(step, report_every) : WantsDecision(step, report_every);
  }

  // All ranks voted after `step`. least: smallest number of steps that a rank wants.
  void Voted(int64_t step, int64_t least) {
    next_ = step + (ahead_ ? Idle(step) : std::clamp<int64_t>(least, 1, vote_every_));
  }

  // A chunk was switched after `step`.
  void Switched(int64_t step, const wire::Propose& switched) {
    known_since_ = -1;
    chunk_follows_ = !IsLastChunk(switched);
    waits_until_ = step + 1 + kActiveSteps;
  }

 private:
  static bool IsLastChunk(const wire::Propose& propose) {
    return propose.chunk + 1 >= propose.num_chunks;
  }
  // Steps since the end of the newest window.
  static int64_t Age(int64_t step, int32_t report_every) { return (step + 1) % report_every; }
  // Steps to the first one after the end of the next window, or of the one that ends with `step`.
  static int64_t ToNextWindow(int64_t step, int32_t report_every) {
    return report_every - step % report_every;
  }
  static int64_t WantsDecision(int64_t step, int32_t report_every) {
    const int64_t age = Age(step, report_every);
    const auto next = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(age) + 1));
    return next < report_every ? next - age : ToNextWindow(step, report_every);
  }
  int64_t Idle(int64_t step) const { return vote_every_ - (step + 1) % vote_every_; }

  int32_t vote_every_;
  bool ahead_ = false;
  bool chunk_follows_ = false;  // the newest switch was not the last of its decision
  int64_t next_;                // step of the next vote
  int64_t waits_until_;         // first step in which a rank without a proposal waits for none
  int64_t known_since_ = -1;    // first vote at which the current proposal was known
};

}  // namespace eplb
