// When a rank did what in a boundary at which it was PREPARED: one line of its log, for traces.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"

#include "base/monotonic_clock.h"

namespace eplb {

// On the wall clock, CLOCK_REALTIME. Both ends are whole microseconds, rounded down, so that what
// lay inside of something else does so here.
struct BoundarySpan {
  std::string name;
  int64_t unix_micros = 0;
  int64_t micros = 0;

  friend bool operator==(const BoundarySpan&, const BoundarySpan&) = default;
};

// A round of the migration plan on this rank: from the first row that it began to send or saw
// arrive to its last row.
struct BoundaryRound {
  int32_t round = 0;
  int64_t unix_micros = 0;
  int64_t micros = 0;
  int64_t sent_bytes = 0;
  int64_t received_bytes = 0;
  int64_t checksum_micros = -1;  // part of it in checksums; -1: not known, as where a GPU sums

  friend bool operator==(const BoundaryRound&, const BoundaryRound&) = default;
};

struct BoundaryTimes {
  int64_t step = 0;     // the boundary, that is the last step before it
  int64_t version = 0;  // version for which this rank was PREPARED
  // committed, dropped, not agreed, begun: its rows move until the next vote, or ended: the run did
  std::string outcome;
  std::string transport;
  BoundarySpan whole;  // "boundary"
  // In order, none within another but "local rows", which lies in "transfer": vote, transfer,
  // check (of rows staged ahead), second vote, commit, rebuild; as far as the boundary came.
  std::vector<BoundarySpan> spans;
  std::vector<BoundaryRound> rounds;  // rising; within "transfer", and may overlap

  friend bool operator==(const BoundaryTimes&, const BoundaryTimes&) = default;
};

// {"event":"boundary","rank":0,"run_id":"..","step":17,"version":3,"outcome":"committed",
//  "transport":"host","unix_micros":1,"micros":9,"spans":[{"name":"vote","unix_micros":1,
//  "micros":2},..],"rounds":[{"round":0,"unix_micros":4,"micros":1,"sent_bytes":8,
//  "received_bytes":8,"checksum_micros":0},..]}
// without checksum_micros where that is not known.
std::string BoundaryTimesToJson(const BoundaryTimes& times, int32_t rank, std::string_view run_id);

// Collects them. All times that it is given are MonotonicNow(): a step of the wall clock within a
// boundary moves no span. cost: a reading of the clock for each end of a span.
// Threads: one caller.
class BoundaryTimer {
 public:
  // began: of the boundary.
  BoundaryTimer(int64_t step, int64_t version, absl::Time began);

  // The span ends now, and whatever lies between it and the next belongs to the boundary alone.
  void AddSpan(std::string_view name, absl::Time began, absl::Time ended = MonotonicNow());
  struct Round {
    int32_t round = 0;
    absl::Time began;
    absl::Time ended;
    int64_t sent_bytes = 0;
    int64_t received_bytes = 0;
    int64_t checksum_micros = -1;
  };
  void AddRound(const Round& round);
  void SetOutcome(std::string_view outcome) { times_.outcome = outcome; }  // before: not agreed
  void SetTransport(std::string_view name) { times_.transport = name; }
  // The boundary has ended.
  const BoundaryTimes& Finish(absl::Time ended);

 private:
  BoundarySpan SpanOf(std::string_view name, absl::Time began, absl::Time ended) const;

  const absl::Time began_;
  const absl::Duration to_wall_;  // from MonotonicNow() to the wall clock, as the boundary began
  BoundaryTimes times_;
};

}  // namespace eplb
