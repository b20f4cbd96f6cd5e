#include "server/core/state/windows.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <numeric>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "placement/figure_mean.h"
#include "proto/wire/report_counts.h"
#include "server/core/state/sentences.h"

namespace eplb::core {
namespace {

// A peer may merge windows, e.g. while the daemon is away; more than so many are no longer one
// estimate.
constexpr int64_t kMaxMergedWindows = 1024;
constexpr size_t kLeastComplete = 2;             // kept of a job, however many bytes they are
constexpr int64_t kCellBytes = sizeof(int64_t);  // counts, loads and step times
static_assert(sizeof(LoadMatrix::Scalar) == kCellBytes && sizeof(RealMatrix::Scalar) == kCellBytes);

bool IsFullRange(const wire::LoadReport& report, int32_t report_every) {
  if (report_every == 0) return false;
  const int64_t steps = report.last_step - report.first_step + 1;
  return report.first_step % report_every == 0 && steps % report_every == 0 &&
         steps / report_every <= kMaxMergedWindows;
}

void NoteShort(Windows& windows, const wire::LoadReport& report, int32_t rank, int32_t report_every,
               ReportOutcome& outcome) {
  if (report.last_step <= windows.last_short_step) return;
  windows.last_short_step = report.last_step;
  outcome.notes.push_back(
      {"report_short",
       absl::StrCat("rank ", rank, " reported steps ", report.first_step, "..", report.last_step,
                    "; only whole windows of ", report_every, " steps are added")});
}

// Ranks that stay behind make every window incomplete: the first of them in a row is noted.
void GiveUp(Windows& windows, const PendingWindow& window, int32_t ranks_per_reporter,
            ReportOutcome& outcome) {
  if (window.dropped) return;
  ++outcome.num_given_up;
  if (++windows.given_up_in_a_row > 1) return;
  std::vector<int32_t> missing;
  for (size_t reporter = 0; reporter < window.reported.size(); ++reporter) {
    if (window.reported[reporter]) continue;
    missing.push_back(static_cast<int32_t>(reporter) * ranks_per_reporter);
  }
  outcome.notes.push_back(
      {"window_incomplete", absl::StrCat("steps ", window.first_step, "..", window.last_step,
                                         " are given up: no report of ", RankList(missing))});
}

int32_t NumReported(const PendingWindow& window) {
  return std::accumulate(window.num_reported.begin(), window.num_reported.end(), 0);
}

using Pending = std::deque<PendingWindow>;

// Removes a window. Later reports of its steps begin it again, unless it was the oldest one.
void Remove(Windows& windows, const Pending::iterator& window) {
  if (window == windows.pending.begin()) {
    windows.given_up_through = std::max(windows.given_up_through, window->last_step);
  }
  windows.pending.erase(window);
}

// Gives up windows that began before patient_since until at most max_pending of them remain. The
// window of `newest` goes last.
void GiveUpOverdue(Windows& windows, const wire::LoadReport& newest, const WindowLimits& limits,
                   ReportOutcome& outcome) {
  Pending& pending = windows.pending;
  const auto is_overdue = [&limits](const PendingWindow& window) {
    return window.began_at < limits.patient_since;
  };
  while (std::ranges::count_if(pending, is_overdue) > limits.max_pending) {
    auto least = pending.end();
    for (auto window = pending.begin(); window != pending.end(); ++window) {
      const bool is_newest =
          window->first_step == newest.first_step && window->last_step == newest.last_step;
      if (!is_overdue(*window) || (is_newest && pending.size() > 1)) continue;
      if (least == pending.end() || NumReported(*window) < NumReported(*least)) least = window;
    }
    if (least == pending.end()) return;
    GiveUp(windows, *least, limits.ranks_per_reporter, outcome);
    Remove(windows, least);
  }
}

bool AddCells(const LoadMatrix& counts, LoadMatrix& sum) {
  for (Eigen::Index i = 0; i < counts.size(); ++i) {
    if (__builtin_add_overflow(sum.data()[i], counts.data()[i], &sum.data()[i])) return false;
  }
  return true;
}

void Drop(PendingWindow& window, ReportOutcome& outcome) {
  window.dropped = true;
  window.sum.resize(0, 0);
  window.earlier.clear();
  outcome.notes.push_back(
      {"window_dropped", absl::StrCat("steps ", window.first_step, "..", window.last_step,
                                      " are dropped: the sum of their reports is above 2^63-1")});
}

bool TellsTheSame(const wire::LoadReport& report, const PendingWindow& window) {
  return !report.parts_unknown && report.version == window.version &&
         std::equal(report.earlier.begin(), report.earlier.end(), window.earlier.begin(),
                    window.earlier.end(), [](const wire::LoadPart& a, const PendingPart& b) {
                      return a.last_step == b.last_step && a.version == b.version;
                    });
}

struct MatrixShape {
  Eigen::Index rows = 0;
  Eigen::Index cols = 0;
};

MatrixShape ShapeOf(const wire::LoadReport& report) {
  return {wire::NumLayers(report), wire::NumExperts(report)};
}

// Adds the counts of a report or of a part of one. Returns false if a sum would overflow.
template <class Counts>
bool AddTo(const Counts& counts, MatrixShape shape, LoadMatrix& sum) {
  if (sum.size() == 0) sum = LoadMatrix::Zero(shape.rows, shape.cols);
  return wire::AddCounts(counts, &sum);
}

// Adds the counts to the window's sum. False if it would overflow.
bool AddWhole(const wire::LoadReport& report, CoreLock* lock, PendingWindow& window) {
  LoadMatrix sum = std::move(window.sum);
  const MatrixShape shape = ShapeOf(report);
  bool added = false;
  {
    const ReadersIn readers(lock, shape.rows * shape.cols);
    added = AddTo(report, shape, sum);
  }
  window.sum = std::move(sum);
  return added;
}

void BeginParts(const wire::LoadReport& report, PendingWindow& window) {
  window.parts_known = !report.parts_unknown;
  window.version = report.version;
  for (const wire::LoadPart& part : report.earlier) {
    window.earlier.push_back({.last_step = part.last_step, .version = part.version, .sum = {}});
  }
}

void NoteDiffering(Windows& windows, const PendingWindow& window, int32_t rank,
                   ReportOutcome& outcome) {
  if (std::exchange(windows.differing_noted, true)) return;
  outcome.notes.push_back(
      {"placements_differ",
       absl::StrCat("steps ", window.first_step, "..", window.last_step, ": rank ", rank,
                    " does not report the placements that the other ranks report for these steps; ",
                    "the balancedness of such windows is not known")});
}

// Adds the counts by placement. A part is never above its report's counts, so no sum of parts
// overflows where the window's sum does not.
void AddParts(Windows& windows, const wire::LoadReport& report, int32_t rank, CoreLock* lock,
              PendingWindow& window, ReportOutcome& outcome) {
  if (NumReported(window) == 1) BeginParts(report, window);
  if (!window.parts_known) return;
  if (!TellsTheSame(report, window)) {
    window.parts_known = false;
    window.earlier.clear();
    NoteDiffering(windows, window, rank, outcome);
    return;
  }
  std::vector<PendingPart> earlier = std::move(window.earlier);
  {
    const ReadersIn readers(lock, std::ssize(earlier) * window.sum.size());
    for (size_t part = 0; part < report.earlier.size(); ++part) {
      (void)AddTo(report.earlier[part], ShapeOf(report), earlier[part].sum);
    }
  }
  window.earlier = std::move(earlier);
}

// FNV-1a, never 0: it only has to differ where reports differ, on every machine alike.
uint64_t ChecksumOf(const wire::LoadReport& report) {
  constexpr uint64_t kPrime = 0x100000001b3;
  uint64_t hash = 0xcbf29ce484222325;
  for (const std::vector<int64_t>* numbers : {&report.split_tokens, &report.split_peaks}) {
    for (const int64_t number : *numbers) {
      hash = (hash ^ static_cast<uint64_t>(number)) * kPrime;
      hash ^= hash >> 29;
    }
  }
  return hash | 1;
}

bool AddNumbers(const std::vector<int64_t>& numbers, std::vector<int64_t>& sums) {
  sums.resize(numbers.size(), 0);
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (__builtin_add_overflow(sums[i], numbers[i], &sums[i])) return false;
  }
  return true;
}

// False if a sum would overflow.
bool AddSplitTokens(const wire::LoadReport& report, PendingWindow& window) {
  SplitTokens& split = window.split;
  if (!AddNumbers(report.split_tokens, split.tokens) ||
      !AddNumbers(report.split_peaks, split.peaks)) {
    return false;
  }
  return !window.layouts_known ||
         (AddNumbers(report.split_peaks_static, split.peaks_static) &&
          AddNumbers(report.split_peaks_without_eplb, split.peaks_without_eplb));
}

// Adds the results of the batches' splits once per EP group, because all of its ranks report the
// same.
void AddSplit(Windows& windows, const wire::LoadReport& report, int32_t rank,
              const WindowLimits& limits, PendingWindow& window, ReportOutcome& outcome) {
  if (!window.split_known || report.split_tokens.empty()) return;
  const RankGrid* const grid = limits.grid;
  const int32_t ep_group = grid == nullptr ? 0 : grid->EpGroupOf(RankId{rank});
  window.split_checksums.resize(static_cast<size_t>(grid == nullptr ? 1 : grid->num_ep_groups()),
                                0);
  if (report.split_peaks_without_eplb.empty()) window.layouts_known = false;
  const uint64_t checksum = ChecksumOf(report);
  uint64_t& known = window.split_checksums[static_cast<size_t>(ep_group)];
  if (known == checksum) return;
  if (known == 0) {
    known = checksum;
    window.split_known = AddSplitTokens(report, window);
    return;
  }
  window.split_known = false;
  window.split = {};
  if (std::exchange(windows.splits_noted, true)) return;
  outcome.notes.push_back(
      {"splits_differ",
       absl::StrCat("steps ", window.first_step, "..", window.last_step, ": rank ", rank,
                    " does not report the splits that another rank of its EP group reports; the ",
                    "balancedness of such windows is that of equal shares")});
}

// The splits of a covered window; null when they do not cover its tokens. Where not every rank
// reported they are of more: an EP group's are of all its ranks.
std::shared_ptr<const SplitTokens> TakeSplit(PendingWindow& window) {
  if (!window.split_known || window.split.tokens.empty()) return nullptr;
  for (Eigen::Index layer = 0; layer < window.sum.rows(); ++layer) {
    const int64_t tokens = window.sum.row(layer).sum();
    if (window.split.tokens[static_cast<size_t>(layer)] < tokens) return nullptr;
  }
  if (!window.layouts_known) {
    window.split.peaks_static.clear();
    window.split.peaks_without_eplb.clear();
  }
  return std::make_shared<const SplitTokens>(std::move(window.split));
}

std::vector<TokensUnder> PartsOf(PendingWindow& window) {
  std::vector<TokensUnder> parts;
  LoadMatrix last = window.sum;
  for (PendingPart& part : window.earlier) {
    last -= part.sum;
    parts.push_back({part.version, std::move(part.sum)});
  }
  parts.push_back({window.version, std::move(last)});
  return parts;
}

// The tokens of a covered window on the GPUs; null when that cannot be known.
std::shared_ptr<const GpuTokens> OnGpus(PendingWindow& window, const RunPlacements& placements) {
  if (!window.parts_known) return nullptr;
  std::optional<GpuTokens> tokens = TokensOnGpus(PartsOf(window), placements);
  return tokens ? std::make_shared<const GpuTokens>(*std::move(tokens)) : nullptr;
}

// Returns Window::step_seconds of a covered window.
std::vector<double> StepSecondsOf(const PendingWindow& window) {
  if (window.step_seconds.empty()) return {};
  std::vector<double> by_reporter(window.reported.size(), 0);
  for (const ReporterSeconds& one : window.step_seconds) {
    by_reporter[static_cast<size_t>(one.reporter)] = one.seconds;
  }
  return by_reporter;
}

// Result of the counts of a covered window.
struct Covered {
  Window window;
  bool has_tokens = false;
  std::optional<Measured> measured = std::nullopt;
};

// Takes the counts. errors: those of Load::FromCounts. cost: O(L * S).
absl::StatusOr<Covered> Evaluate(PendingWindow& pending, const Windows& windows,
                                 const WindowLimits& limits) {
  std::shared_ptr<const GpuTokens> on_gpus = OnGpus(pending, windows.placements);
  std::shared_ptr<const SplitTokens> split = TakeSplit(pending);
  EPLB_ASSIGN_OR_RETURN(Load load, Load::FromCounts(std::move(pending.sum)));
  const auto num_reported = std::ranges::count(pending.reported, true);
  Covered covered{.window = {.first_step = pending.first_step,
                             .last_step = pending.last_step,
                             .load = std::make_shared<const Load>(std::move(load)),
                             .coverage = static_cast<double>(num_reported) / limits.num_reporters,
                             .on_gpus = std::move(on_gpus),
                             .step_seconds = StepSecondsOf(pending),
                             .split = std::move(split),
                             .began_at = pending.began_at,
                             .complete_at = limits.now}};
  const Window& window = covered.window;
  covered.has_tokens = HasTokens(*window.load);
  if (window.on_gpus == nullptr || !covered.has_tokens) return covered;
  const Placement& ran = *windows.placements.Find(window.on_gpus->versions.back());
  covered.measured = Measure(*window.load, *window.on_gpus, window.split.get(), ran.topology(),
                             windows.speeds.get());
  if (covered.measured) {
    covered.measured->first_step = window.first_step;
    covered.measured->last_step = window.last_step;
  }
  return covered;
}

void NoteMeasuredWindow(Windows& windows, const Covered& covered, ReportOutcome& outcome) {
  if (!covered.has_tokens) {
    windows.measured.reset();
    windows.worse_in_a_row = 0;
  }
  if (covered.window.on_gpus == nullptr || !covered.has_tokens) return;
  windows.measured = covered.measured;
  windows.placements.DropBelow(covered.window.on_gpus->versions.back());
  if (!windows.measured) {
    windows.worse_in_a_row = 0;
    return;
  }
  const std::optional<double>& without = windows.measured->balancedness_without_eplb;
  const bool worse = without && windows.measured->balancedness < kWorseShare * *without;
  windows.worse_in_a_row = worse ? windows.worse_in_a_row + 1 : 0;
  outcome.measured = true;
}

int64_t CellsOf(const SplitTokens& split) {
  return std::ssize(split.tokens) + std::ssize(split.peaks) + std::ssize(split.peaks_static) +
         std::ssize(split.peaks_without_eplb);
}

int64_t BytesOfPending(const PendingWindow& window) {
  int64_t cells = window.sum.size() + CellsOf(window.split) + std::ssize(window.split_checksums);
  for (const PendingPart& part : window.earlier) cells += part.sum.size();
  const size_t others = sizeof(window) + window.reported.size() / CHAR_BIT +
                        window.num_reported.size() * sizeof(int32_t) +
                        window.step_seconds.capacity() * sizeof(ReporterSeconds) +
                        window.earlier.size() * sizeof(PendingPart);
  return cells * kCellBytes + static_cast<int64_t>(others);
}

int64_t BytesOfComplete(const Window& window) {
  int64_t cells = window.load->counts().size() + std::ssize(window.step_seconds);
  if (window.on_gpus != nullptr) cells += window.on_gpus->loads.size();
  if (window.split != nullptr) cells += CellsOf(*window.split);
  return cells * kCellBytes + static_cast<int64_t>(sizeof(window));
}

bool HasSpare(const Windows& windows) {
  return windows.complete.size() > kLeastComplete || windows.pending.size() > 1;
}

// Returns true if the window was a pending one.
bool DropOne(Windows& windows, absl::Time patient_since) {
  if (windows.complete.size() > kLeastComplete) {
    windows.complete.pop_front();
    return false;
  }
  const auto rank = [patient_since](const PendingWindow& window) {
    const bool is_overdue = window.began_at < patient_since;
    return std::tuple(!is_overdue, NumReported(window),
                      is_overdue ? window.last_step : -window.last_step);
  };
  Remove(windows, std::ranges::min_element(windows.pending,
                                           [&rank](const PendingWindow& a, const PendingWindow& b) {
                                             return rank(a) < rank(b);
                                           }));
  return true;
}

int32_t ReportersPerPipelineStage(const WindowLimits& limits) {
  return limits.num_reporters / limits.pipeline_parallel_size;
}

// 0.95 of 20 ranks is 19, also when the product comes out a little above it.
bool IsCovered(const PendingWindow& window, const WindowLimits& limits) {
  const double share = limits.min_coverage * ReportersPerPipelineStage(limits);
  const int32_t least = std::max(1, static_cast<int32_t>(std::ceil(share - 1e-6)));
  return std::ranges::all_of(window.num_reported,
                             [least](int32_t reported) { return reported >= least; });
}

// The pending window of this range, made when there is none yet.
std::deque<PendingWindow>::iterator Find(Windows& windows, const wire::LoadReport& report,
                                         const WindowLimits& limits) {
  auto position = std::ranges::find_if(windows.pending, [&report](const PendingWindow& window) {
    return window.last_step > report.last_step ||
           (window.last_step == report.last_step && window.first_step >= report.first_step);
  });
  if (position != windows.pending.end() && position->last_step == report.last_step &&
      position->first_step == report.first_step) {
    return position;
  }
  PendingWindow fresh;
  fresh.first_step = report.first_step;
  fresh.last_step = report.last_step;
  fresh.reported.assign(static_cast<size_t>(limits.num_reporters), false);
  fresh.num_reported.assign(static_cast<size_t>(limits.pipeline_parallel_size), 0);
  fresh.began_at = limits.now;
  return windows.pending.insert(position, std::move(fresh));
}

// Moves a covered window to the complete ones and gives up every pending one that begins before its
// end: the ranks report in order, so those cannot become complete any more.
void Complete(Windows& windows, std::deque<PendingWindow>::iterator position,
              const WindowLimits& limits, ReportOutcome& outcome) {
  PendingWindow pending = std::move(*position);
  position = windows.pending.erase(position);
  absl::StatusOr<Covered> covered;
  {
    const ReadersIn readers(limits.lock);
    covered = Evaluate(pending, windows, limits);
  }
  if (!covered.ok()) {
    Drop(pending, outcome);
    windows.pending.insert(position, std::move(pending));
    return;
  }
  const int64_t first_step = pending.first_step;
  const int64_t last_step = pending.last_step;
  windows.newest = {.first_step = first_step,
                    .last_step = last_step,
                    .coverage = covered->window.coverage,
                    .has_tokens = covered->has_tokens};
  NoteMeasuredWindow(windows, *covered, outcome);
  windows.complete.push_back(std::move(covered->window));
  if (static_cast<int32_t>(windows.complete.size()) > limits.max_complete) {
    windows.complete.pop_front();
  }
  outcome.completed = true;
  std::deque<PendingWindow> kept;
  for (PendingWindow& other : windows.pending) {
    if (other.first_step > last_step) {
      kept.push_back(std::move(other));
    } else {
      GiveUp(windows, other, limits.ranks_per_reporter, outcome);
    }
  }
  windows.pending = std::move(kept);
  if (windows.given_up_in_a_row > 1) {
    outcome.notes.push_back(
        {"window_complete_again",
         absl::StrCat("steps ", first_step, "..", last_step, " are complete, after ",
                      windows.given_up_in_a_row, " windows in a row were given up")});
  }
  windows.given_up_in_a_row = 0;
}

}  // namespace

ReportOutcome AddReport(Windows& windows, const wire::LoadReport& report, int32_t rank,
                        const WindowLimits& limits) {
  ReportOutcome outcome;
  if (!windows.complete.empty() && report.first_step <= windows.complete.back().last_step) {
    return outcome;
  }
  // A rank that comes back sends what it kept; an evicted window is not begun again.
  if (report.last_step <= windows.given_up_through) return outcome;
  if (!IsFullRange(report, limits.report_every) && !IsFullRange(report, limits.next_report_every)) {
    NoteShort(windows, report, rank, limits.report_every, outcome);
    return outcome;
  }
  const auto position = Find(windows, report, limits);
  PendingWindow& window = *position;
  const int32_t reporter = rank / limits.ranks_per_reporter;
  if (window.dropped || window.reported[reporter]) return outcome;
  window.reported[reporter] = true;
  ++window.num_reported[reporter / ReportersPerPipelineStage(limits)];
  if (report.step_seconds > 0) window.step_seconds.push_back({reporter, report.step_seconds});
  if (!AddWhole(report, limits.lock, window)) {
    Drop(window, outcome);
  } else {
    AddParts(windows, report, rank, limits.lock, window, outcome);
    AddSplit(windows, report, rank, limits, window, outcome);
    if (IsCovered(window, limits)) Complete(windows, position, limits, outcome);
  }
  GiveUpOverdue(windows, report, limits, outcome);
  return outcome;
}

int64_t BytesOf(const Windows& windows) {
  int64_t bytes = 0;
  for (const PendingWindow& window : windows.pending) bytes += BytesOfPending(window);
  for (const Window& window : windows.complete) bytes += BytesOfComplete(window);
  return bytes;
}

void DropLoads(Windows& windows) {
  if (windows.newest.coverage > 0) {
    windows.given_up_through = std::max(windows.given_up_through, windows.newest.last_step);
  }
  windows.pending.clear();
  windows.complete.clear();
}

int64_t BoundBytes(const std::vector<Windows*>& jobs, int64_t max_bytes, absl::Time patient_since) {
  struct Held {
    Windows* windows;
    int64_t bytes;
  };
  std::vector<Held> held;
  int64_t total = 0;
  for (Windows* windows : jobs) {
    held.push_back({windows, BytesOf(*windows)});
    total += held.back().bytes;
  }
  int64_t num_given_up = 0;
  while (total > max_bytes) {
    Held* most = nullptr;
    for (Held& one : held) {
      if (!HasSpare(*one.windows)) continue;
      if (most == nullptr || one.bytes > most->bytes) most = &one;
    }
    if (most == nullptr) break;
    if (DropOne(*most->windows, patient_since)) ++num_given_up;
    const int64_t bytes = BytesOf(*most->windows);
    total -= most->bytes - bytes;
    most->bytes = bytes;
  }
  return num_given_up;
}

absl::StatusOr<Window> SumSince(const Windows& windows, int64_t after_step, int32_t max_windows) {
  Window result;
  LoadMatrix sum;
  int32_t taken = 0;
  for (auto window = windows.complete.rbegin();
       window != windows.complete.rend() && taken < max_windows && window->last_step > after_step;
       ++window, ++taken) {
    if (taken == 0) {
      sum = window->load->counts();
      result.last_step = window->last_step;
    } else if (!AddCells(window->load->counts(), sum)) {
      return absl::OutOfRangeError("the sum of the windows is above 2^63-1");
    }
    result.first_step = window->first_step;
  }
  if (taken == 0) return absl::NotFoundError("no complete window since the last decision");
  absl::StatusOr<Load> load = Load::FromCounts(std::move(sum));
  if (!load.ok()) return absl::OutOfRangeError("the sum of the windows is above 2^63-1");
  result.load = std::make_shared<const Load>(*std::move(load));
  return result;
}

bool HasTokens(const Load& load) { return (load.counts() > 0).any(); }

double MeasuredOver(const std::deque<Window>& windows, int64_t first_step, int64_t last_step,
                    SplitMode split, const GpuSpeeds* speeds) {
  FigureMean mean;
  for (const Window& window : windows) {
    if (window.first_step < first_step || window.last_step > last_step) continue;
    if (!HasTokens(*window.load)) continue;
    if (window.on_gpus == nullptr) return 0;
    if (split == SplitMode::kBatch && window.split == nullptr) return 0;
    mean.Add(BalancednessOf(window.on_gpus.get(), window.split.get(), speeds));
  }
  return mean.Value().value_or(0);
}

}  // namespace eplb::core
