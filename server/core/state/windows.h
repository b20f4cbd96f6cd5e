// Load windows of a job: the ranks' reports summed over ranks, one window per range of steps.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "placement/gpu_speeds.h"
#include "placement/load.h"
#include "placement/rank_grid.h"
#include "placement/topology.h"
#include "proto/wire/messages.h"
#include "server/core/values/core_lock.h"
#include "server/core/values/measured.h"

namespace eplb::core {

// A window that enough ranks reported.
struct Window {
  int64_t first_step = 0;
  int64_t last_step = 0;
  std::shared_ptr<const Load> load;  // [L, E], tokens summed over ranks
  double coverage = 0;               // share of reporters in the sum
  // Null when a placement that some of the steps ran under is not known.
  std::shared_ptr<const GpuTokens> on_gpus = nullptr;
  // [num_reporters], as LoadReport::step_seconds; 0 where it is not known. Empty: nowhere known.
  std::vector<double> step_seconds = {};
  // Null when the ranks did not report exact splits of all its tokens, or not alike.
  std::shared_ptr<const SplitTokens> split = nullptr;
  absl::Time began_at = absl::UnixEpoch();     // its first report arrived
  absl::Time complete_at = absl::UnixEpoch();  // the report that completed it arrived
};

// Steps of a pending window up to last_step that ran under one placement.
struct PendingPart {
  int64_t last_step = 0;
  int64_t version = 0;
  LoadMatrix sum;
};

// Mean time of a step, as LoadReport::step_seconds.
struct ReporterSeconds {
  int32_t reporter = 0;
  double seconds = 0;
};

struct PendingWindow {
  int64_t first_step = 0;
  int64_t last_step = 0;
  LoadMatrix sum;                             // empty once dropped
  std::vector<bool> reported;                 // [num_reporters]
  std::vector<int32_t> num_reported;          // [pipeline_parallel_size]
  std::vector<ReporterSeconds> step_seconds;  // by reporters of the window
  bool dropped = false;  // its sum would overflow; kept so that later reports are ignored
  // Which placements its steps ran under, as the first report told: the last steps, and those
  // before.
  int64_t version = 0;
  std::vector<PendingPart> earlier;
  bool parts_known = true;  // false: a report does not tell, or two do not agree
  // Exact splits of the EP groups of which a rank reported any, and by EP group a checksum of what
  // the first one reported, 0 before it. Empty before the first report of a split.
  SplitTokens split;
  std::vector<uint64_t> split_checksums;
  bool split_known = true;  // false: two ranks of an EP group do not agree, or a sum would overflow
  bool layouts_known = true;  // false: a report of a split lacks the peaks of other layouts
  absl::Time began_at = absl::UnixEpoch();  // its first report arrived
};

// Figures of a window that stay after its load was dropped.
struct Figures {
  int64_t first_step = 0;
  int64_t last_step = 0;
  double coverage = 0;      // 0: there was no complete window yet
  bool has_tokens = false;  // true if any layer has tokens
};

// A window whose balancedness is below this share of that without EPLB is worse.
// kWorseWindows of them in a row are reported, because one may be chance.
inline constexpr double kWorseShare = 0.999;
inline constexpr int32_t kWorseWindows = 3;

// Time for which an incomplete window waits for its ranks, because the daemon may read one rank's
// reports seconds before those of the next.
inline constexpr absl::Duration kWindowPatience = absl::Seconds(20);

struct Windows {
  std::deque<PendingWindow> pending;  // by last_step, rising; bounded by AddReport and BoundBytes
  std::deque<Window> complete;        // rising; at most max_complete
  int64_t given_up_through = -1;      // last step of the newest window that was evicted incomplete
  int64_t given_up_in_a_row = 0;      // since the newest complete one
  int64_t last_short_step = -1;       // newest window for which a short report was noted
  RunPlacements placements;           // placements that the ranks ran
  // The newest complete window whose placements are known. Absent: there is none yet, or the newest
  // complete window has no tokens.
  std::optional<Measured> measured;
  int32_t worse_in_a_row = 0;  // newest measured windows that were less even than without EPLB
  // With which `measured` divides the tokens; null: all equal. Has the job's number of GPUs.
  std::shared_ptr<const GpuSpeeds> speeds;
  Figures newest;                // figures of the newest complete window, also once it was dropped
  bool differing_noted = false;  // noted: ranks do not agree on which placements they ran
  bool splits_noted = false;     // noted: ranks of an EP group do not agree on their splits
};

struct WindowLimits {
  int32_t num_reporters = 0;           // every ranks_per_reporter-th rank
  int32_t ranks_per_reporter = 1;      // ranks that see the same tokens
  int32_t pipeline_parallel_size = 1;  // each counts layers of its own, so each must be covered
  int32_t report_every = 0;            // steps
  int32_t next_report_every = 0;       // interval to which ranks are changing, or 0
  double min_coverage = 1;             // share of reporters that must report the full range
  int32_t max_pending = 1;             // windows that began before `patient_since`
  int32_t max_complete = 1;
  // Windows that began at this time or later wait for their ranks, whatever their number.
  absl::Time patient_since = absl::InfiniteFuture();
  const RankGrid* grid = nullptr;  // grid of the run; null: all ranks are one EP group
  absl::Time now = absl::UnixEpoch();
  CoreLock* lock = nullptr;  // released while counts are added up and a window is measured
};

// Something worth a line in the audit log.
struct Note {
  std::string name;
  std::string reason;
};

struct ReportOutcome {
  bool completed = false;    // windows.complete.back() is new
  bool measured = false;     // windows.measured is of it
  int32_t num_given_up = 0;  // incomplete, and no longer waited for
  std::vector<Note> notes;
};

// Adds a checked report to the window of its range. A range is full when it begins and ends at
// multiples of report_every, or of next_report_every; a shorter one (the rank dropped steps) is not
// added and noted once per window. A window is complete when min_coverage of the reporters of each
// pipeline stage are in it. A second report of a rank, and one that overlaps a complete
// window, are ignored. A window whose sum would go above 2^63-1 is dropped and noted. Of
// windows given up one after the other the first is noted, and their number with the next complete
// one. Of the windows that began before limits.patient_since at most max_pending stay: the one that
// fewest ranks reported is given up first, of those the oldest. cost: O(L * E).
ReportOutcome AddReport(Windows& windows, const wire::LoadReport& report, int32_t rank,
                        const WindowLimits& limits);

// Returns the bytes of memory that the windows hold. cost: O(windows).
int64_t BytesOf(const Windows& windows);

// Gives up the pending windows and forgets the complete ones; the figures stay. Reports that come
// again of their steps are ignored.
void DropLoads(Windows& windows);

// Drops windows of the job that holds most until all jobs together hold at most `max_bytes`. Each
// job keeps its two newest complete windows and one pending window. The oldest complete window is
// dropped first, then the pending window that fewest ranks reported: the oldest of those that began
// before `patient_since`, or else the newest, because a rank that runs ahead began it.
// Returns how many pending windows were given up. cost: O(windows).
int64_t BoundBytes(const std::vector<Windows*>& jobs, int64_t max_bytes,
                   absl::Time patient_since = absl::InfiniteFuture());

// Returns the steps of the newest `max_windows` complete windows that end after `after_step`, and
// the sum of their loads; the other figures of a window are not summed.
// errors: NotFound when there is none, OutOfRange when the sum would go above 2^63-1.
absl::StatusOr<Window> SumSince(const Windows& windows, int64_t after_step, int32_t max_windows);

bool HasTokens(const Load& load);

// Balancedness of the complete windows within [first_step, last_step], the mean over them: of the
// batches' splits with kBatch, else of equal shares. Windows without tokens are in no mean. 0 if no
// window has tokens, or the balancedness of one of them is not known.
// speeds: as Measure. cost: O(windows * L * G).
double MeasuredOver(const std::deque<Window>& windows, int64_t first_step, int64_t last_step,
                    SplitMode split, const GpuSpeeds* speeds);

}  // namespace eplb::core
