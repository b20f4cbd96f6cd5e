// A fault in a job of processes: its kind, its rank and its place in a migration.
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"

namespace eplb {

// In the order in which a migration passes them on one rank.
enum class Point {
  kBeforeVote,   // before the first vote
  kBeforePost,   // after it, before the peers hear of the post
  kAfterPost,    // they may write rows into this rank's staging
  kDuringRows,   // after the nth time that bytes had moved here
  kAfterStage,   // all rows are here, the second vote is not given
  kAfterVote,    // the second vote said yes, no slot is written
  kMidCommit,    // the rows of one tensor are in their slots, those of others are not
  kAfterCommit,  // the boundary has returned
  kNone,
};
inline constexpr Point kPoints[] = {Point::kBeforeVote, Point::kBeforePost, Point::kAfterPost,
                                    Point::kDuringRows, Point::kAfterStage, Point::kAfterVote,
                                    Point::kMidCommit,  Point::kAfterCommit};

enum class Strike {
  kNone,
  kKill,     // SIGKILL
  kStop,     // SIGSTOP, and SIGCONT as Fault::resume requires
  kDelay,    // the rank sleeps for `lasts`
  kCorrupt,  // changes a row in staging, before its checksum is compared; only at kAfterPost
};

// When a rank that was stopped goes on. A test that waits for the peers' state holds on a busy
// machine as well.
enum class Resume {
  kAfterLasts,
  kWhenPeersGaveUp,  // the rows of the fault's migration are staged or given up on every peer
  kWhenPeersEnded,   // the job has ended on every peer
};

struct Fault {
  Strike strike = Strike::kNone;
  Point point = Point::kNone;
  int32_t victim = 0;
  int32_t nth = 0;                              // number in kDuringRows
  uint64_t post_id = 2;                         // post of the migration it meets
  absl::Duration lasts = absl::ZeroDuration();  // length of kDelay, and of kStop with kAfterLasts
  Resume resume = Resume::kAfterLasts;
  // Deadlines that only the fault may exceed; zero: the job's. Every other wait has the job's
  // deadlines, which are so long that no busy machine exceeds them.
  // Deadline of the rows of migration `post_id`.
  absl::Duration rows_deadline = absl::ZeroDuration();
  // Deadline of the vote that the victim misses.
  absl::Duration vote_deadline = absl::ZeroDuration();
  std::string nccl;         // EPLB_FAKE_NCCL_FAULTS of the first communicator
  bool nccl_stays = false;  // the faults are those of all communicators

  // True for the vote that a rank misses that stops at `point` of migration `post_id`. first: of
  // the two votes of a migration; ready: a migration is proposed; num_posts: migrations begun.
  bool IsMissedVote(bool first, bool ready, uint64_t num_posts) const;
  std::string Name() const;
};

std::string NameOf(Point point);
std::string NameOf(Strike strike);

}  // namespace eplb
