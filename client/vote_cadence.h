// Which steps of a run end with a vote. Ranks agree on it without a message of its own, because
// only the results of votes, which all ranks have, and the step's number change it.
#pragma once

#include <cstdint>

namespace eplb {

// The first step of a run votes. After a vote the next step votes too if any rank expects a change;
// otherwise the next vote is at a multiple of vote_every. A job that stages rows ahead votes at
// these multiples only, because its rows move beside the steps between two votes. Threads: the
// training thread.
class VoteCadence {
 public:
  // Steps after the start of a run, and after each switch, in which a rank with a daemon expects a
  // change: while loads change, a placement is seldom the last one.
  static constexpr int64_t kActiveSteps = 32;
  static constexpr int64_t kMostVotes = 128;  // votes in a row because of one proposal

  // vote_every: steps between votes while nothing is expected, >= 1. first_step: first of the run.
  VoteCadence(int32_t vote_every, int64_t first_step)
      : vote_every_(vote_every), next_(first_step), expects_until_(first_step + kActiveSteps) {}

  // Sets whether rows are staged ahead from now on, as all ranks agreed.
  void SetAhead(bool ahead) {
    ahead_ = ahead;
    if (ahead) next_ = -1;
  }

  bool VotesAt(int64_t step) const { return step == next_ || (step + 1) % vote_every_ == 0; }

  // Returns the last value of this rank's vote after `step`, whose minimum Voted takes: -1 if this
  // rank expects a change, because it knows a proposal or has reason to wait for one. Otherwise 0.
  // knows_proposal: the daemon's newest proposal is neither applied nor dropped. It counts for
  // kMostVotes steps, because the daemon may be gone. waits: a daemon may propose something.
  int64_t Expects(int64_t step, bool knows_proposal, bool waits) {
    if (!knows_proposal) known_since_ = -1;
    if (knows_proposal && known_since_ < 0) known_since_ = step;
    const bool is_recent = knows_proposal && step - known_since_ < kMostVotes;
    return is_recent || (waits && step < expects_until_) ? -1 : 0;
  }

  // All ranks voted after `step`.
  void Voted(int64_t step, int64_t least_expects) {
    next_ = least_expects < 0 && !ahead_ ? step + 1 : -1;
  }

  // A chunk was switched after `step`.
  void Switched(int64_t step) {
    known_since_ = -1;
    expects_until_ = step + 1 + kActiveSteps;
  }

 private:
  int32_t vote_every_;
  bool ahead_ = false;
  int64_t next_;              // step whose vote does not follow from vote_every; -1: none
  int64_t expects_until_;     // first step in which a rank without a proposal expects none
  int64_t known_since_ = -1;  // first vote at which the current proposal was known
};

}  // namespace eplb
