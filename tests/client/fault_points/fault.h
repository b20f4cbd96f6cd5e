// What goes wrong in a job of processes, on which rank and where in a migration.
#ifndef EPLB_TESTS_CLIENT_FAULT_POINTS_FAULT_H_
#define EPLB_TESTS_CLIENT_FAULT_POINTS_FAULT_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"

namespace eplb::testing {

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
  kStop,     // SIGSTOP, and SIGCONT after `lasts`
  kDelay,    // the rank sleeps for `lasts`
  kCorrupt,  // of a row that is in staging, before its checksum is compared; only at kAfterPost
};

struct Fault {
  Strike strike = Strike::kNone;
  Point point = Point::kNone;
  int32_t victim = 0;
  int32_t nth = 0;       // of kDuringRows
  uint64_t post_id = 2;  // of the migration it meets
  absl::Duration lasts = absl::ZeroDuration();
  std::string nccl;         // EPLB_FAKE_NCCL_FAULTS of the first communicator
  bool nccl_stays = false;  // of all

  std::string Name() const;
};

std::string NameOf(Point point);
std::string NameOf(Strike strike);

}  // namespace eplb::testing

#endif  // EPLB_TESTS_CLIENT_FAULT_POINTS_FAULT_H_
