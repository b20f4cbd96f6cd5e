#include "server/core/state/memory.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

#include "proto/wire/names.h"
#include "server/core/state/step_rate.h"

namespace eplb::core {

namespace {

constexpr int kCarriers = 4;  // connected ranks that get a change: that all of them go is unlikely
constexpr int64_t kMaxWindows = int64_t{1} << 40;  // windows in an account
constexpr int32_t kMaxSkip = 64;                   // decisions, of a back-off
constexpr double kMaxReportSeconds = 86400;
constexpr int kRisesOfAReport = 3;  // so many say how long a report takes
constexpr double kOtherReport = 2;  // times shorter or longer is worth a write
constexpr double kGapMatters = 4;   // report intervals: a shorter gap is within their patience

bool AllSaidHello(const Job& job) {
  return job.current && job.current->num_hello == job.current->world_size();
}

bool IsNewer(const wire::JobMemory& memory, const Job& job) {
  return std::tie(memory.term, memory.serial) > std::tie(job.memory.term, job.memory.serial);
}

// The run owned the job after the one that this daemon knows: its memory is of a later time,
// although this daemon has led an older run with a newer term since.
bool IsOfALaterRun(const wire::JobMemory& memory, const Job& job, const wire::Hello& hello) {
  return memory.run_id == hello.run_id && memory.run_number > job.owner.run_number;
}

// A rank's word: what does not fit is no memory at all.
bool Fits(const wire::JobMemory& memory, const Job& job, const wire::Hello& hello) {
  const auto within = [](int64_t value, int64_t most) { return value >= 0 && value <= most; };
  const bool numbers =
      memory.serial > 0 && within(memory.serial, job.memory.serial + kMaxJump) &&
      within(memory.term, std::max(hello.highest_term, job.memory.term)) &&
      within(memory.run_number, std::max(hello.run_number, job.owner.run_number)) &&
      within(memory.account_windows, kMaxWindows) &&
      within(memory.next_version, job.versions.next + kMaxJump) &&
      within(memory.back_off_length, kMaxSkip) &&
      within(memory.back_off_to_skip, memory.back_off_length) &&
      within(memory.last_decision_step.value_or(0), hello.step) && memory.report_seconds >= 0 &&
      memory.report_seconds <= kMaxReportSeconds && memory.gap_seconds >= 0 &&
      memory.gap_seconds <= kMaxReportSeconds;
  const bool names = wire::CheckPrintableName("run_id", memory.run_id).ok() &&
                     std::ranges::all_of(memory.gone, [](const wire::EndedRun& gone) {
                       return wire::CheckPrintableName("gone", gone.run_id).ok();
                     });
  return numbers && names && wire::CheckPatch(memory.settings).ok();
}

// Adds the runs that ended by the knowledge of an earlier daemon, however old the memory is. Only a
// run that owned the job later can end the current one so.
void AddCarriedGone(Job& job, const wire::Hello& hello) {
  for (const wire::EndedRun& gone : hello.memory.value->gone) {
    const bool in_force = job.current && job.current->name == gone.run_id;
    if (gone.run_id == hello.run_id) continue;
    if (in_force && hello.run_number <= job.current->claimed) continue;
    AddGone(job, gone);
  }
}

std::string StopsText(const Job& job) {
  std::string text =
      job.orders.paused ? absl::StrCat("paused: ", job.orders.pause_reason) : "not paused";
  if (!job.quarantine.empty()) absl::StrAppend(&text, "; in QUARANTINE: ", job.quarantine);
  return text;
}

// A job whose past is lost with the store: an operator may have stopped it.
void PauseUnknown(DecisionContext& context, Job& job, absl::Time moved_aside) {
  job.orders.paused = true;
  job.orders.paused_by_lost_store = true;
  job.memory.is_ours = true;  // ranks that follow do not lift it
  job.orders.pause_reason =
      absl::StrCat("the store was moved aside at ",
                   absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", moved_aside, absl::UTCTimeZone()),
                   " and did not know this job; look at the job, then use eplbctl resume");
  RecordEvent(context, job, "unknown_job_paused", 0, job.orders.pause_reason);
}

// QUARANTINE, also when the job was only waiting. A state in which answers are due has its own end.
void FollowQuarantine(DecisionContext& context, Job& job) {
  const bool waits = job.phase == Phase::kRecovering || job.phase == Phase::kIdle;
  if (job.quarantine.empty() || !waits) return;
  if (job.current && job.current->name != job.owner.run_id) return;
  SetPhase(context, job, Phase::kQuarantine);
}

}  // namespace

void AddGone(Job& job, const wire::EndedRun& gone) {
  const auto known = std::ranges::find_if(job.owner.ended_runs, [&gone](const wire::EndedRun& one) {
    return one.run_id == gone.run_id;
  });
  if (known != job.owner.ended_runs.end()) {
    if (known->run_number == 0) known->run_number = gone.run_number;
    return;
  }
  job.owner.ended_runs.push_back(gone);
  if (job.owner.ended_runs.size() > wire::kMaxEndedRuns) job.owner.ended_runs.pop_front();
}

wire::JobMemory MemoryOf(const Job& job) {
  wire::JobMemory memory;
  memory.term = job.memory.term;
  memory.serial = job.memory.serial;
  memory.run_number = job.owner.run_number;
  memory.run_id = job.owner.run_id;
  memory.gone.assign(job.owner.ended_runs.begin(), job.owner.ended_runs.end());
  memory.paused = job.orders.paused;
  memory.pause_reason = job.orders.pause_reason;
  memory.paused_by_lost_store = job.orders.paused_by_lost_store;
  memory.settings = job.orders.patch;
  memory.quarantine = job.quarantine;
  memory.last_decision_step = job.decisions.last_step;
  memory.back_off_length = job.decisions.back_off.length;
  memory.back_off_to_skip = job.decisions.back_off.to_skip;
  memory.account_windows = job.decisions.account.windows;
  memory.account_saved_peak_tokens = job.decisions.account.saved_peak_tokens;
  memory.account_pause_seconds = job.decisions.account.pause_seconds;
  memory.saved = job.decisions.account.saved;
  memory.report_seconds = job.reports.seconds;
  memory.gap_seconds = job.reports.gap_seconds;
  memory.next_version = job.versions.next;
  memory.slow_gpus = wire::SpeedsText(job.speeds.estimate.slow());
  return memory;
}

void Remember(Job& job, Tell tell) {
  ++job.memory.serial;
  // Until all ranks have come one of them may hold what is newer than the store's.
  if (AllSaidHello(job)) {
    job.memory.term = job.term;
    job.memory.is_ours = true;
  }
  job.store.due = true;
  job.memory.tell = std::max(job.memory.tell, tell);
}

void RememberReportTime(Job& job) {
  const StepRate& rate = job.current->rate;
  if (std::ssize(rate.told) <= kRisesOfAReport) return;
  const auto is_other = [](double seconds, double before) {
    return seconds * kOtherReport < before || seconds > before * kOtherReport;
  };
  const auto seconds_of = [](absl::Duration time) {
    return std::min(absl::ToDoubleSeconds(time), kMaxReportSeconds);
  };
  const double report = seconds_of(ReportInterval(*job.current));
  const double usual = seconds_of(UsualGap(rate));
  const double gap = usual > kGapMatters * report ? usual : 0;
  const bool other_report = is_other(report, job.reports.seconds);
  const bool other_gap = is_other(gap, job.reports.gap_seconds);
  if (other_report) job.reports.seconds = report;
  if (other_gap) job.reports.gap_seconds = gap;
  if (other_report || other_gap) Remember(job);
}

void TellMemory(DecisionContext& context, Job& job) {
  const Tell tell = std::exchange(job.memory.tell, Tell::kNobody);
  if (!job.current || tell == Tell::kNobody) return;
  const wire::Keep keep{job.current->run_number, {.value = MemoryOf(job)}};
  int told = 0;
  for (const Rank& rank : job.current->ranks) {
    if (rank.session == 0) continue;
    if (tell == Tell::kFew && ++told > kCarriers) return;
    SendTo(context, rank, keep);
  }
}

void TellMemory(DecisionContext& context, const Job& job, const Rank& rank) {
  if (job.memory.serial == 0) return;
  SendTo(context, rank, wire::Keep{job.current->run_number, {.value = MemoryOf(job)}});
}

void Recall(State& state, Job& job, const wire::JobMemory& memory) {
  job.memory.term = memory.term;
  job.memory.serial = memory.serial;
  job.owner.run_number = std::max(job.owner.run_number, memory.run_number);
  for (const wire::EndedRun& gone : memory.gone) AddGone(job, gone);
  job.orders.paused = memory.paused;
  job.orders.pause_reason = memory.pause_reason;
  job.orders.paused_by_lost_store = memory.paused_by_lost_store;
  job.orders.patch = memory.settings;
  job.settings = SettingsOf(state.config, job.name, job.orders.patch);
  job.owner.run_id = memory.run_id;
  job.quarantine = memory.quarantine;
  job.decisions.last_step = memory.last_decision_step;
  job.decisions.back_off = {.length = memory.back_off_length, .to_skip = memory.back_off_to_skip};
  job.decisions.account = {};
  // Older daemons counted the windows against another layout; without them no pauses count.
  if (memory.account_saved_peak_tokens) {
    const double pauses = memory.account_pause_seconds;
    job.decisions.account = {.windows = memory.account_windows,
                             .saved_peak_tokens = *memory.account_saved_peak_tokens,
                             .pause_seconds = pauses,
                             .earlier_pauses = memory.saved.earlier_seconds != 0 ? pauses : 0,
                             .saved = memory.saved};
  }
  job.reports.seconds = memory.report_seconds;
  job.reports.gap_seconds = memory.gap_seconds;
  job.versions.next = std::max(job.versions.next, memory.next_version);
  const auto slow = wire::ParseSpeeds(memory.slow_gpus);
  job.speeds.estimate = slow.ok() ? GpuSpeedEstimate::Continue(*slow) : GpuSpeedEstimate();
}

void RecallFrom(DecisionContext& context, Job& job, const wire::Hello& hello) {
  const std::optional<absl::Time>& moved_aside = context.state.config.store_moved_aside;
  const bool is_new = !job.last_known && !job.current && !job.candidate && job.memory.serial == 0;
  const bool may_be_stopped =
      moved_aside && context.now < context.state.config.pauses_unknown_until;
  if (is_new && may_be_stopped && hello.run_number > 0) PauseUnknown(context, job, *moved_aside);
  const std::optional<wire::JobMemory>& carried = hello.memory.value;
  if (!carried || !Fits(*carried, job, hello)) return;
  AddCarriedGone(job, hello);
  const bool is_newer = IsNewer(*carried, job);
  if (!is_newer && !IsOfALaterRun(*carried, job, hello)) return;
  wire::JobMemory memory = *carried;
  if (!is_newer) {
    memory.term = job.memory.term;
    memory.serial = job.memory.serial + 1;
  }
  memory.gone.clear();  // added above
  if (job.memory.is_ours && job.orders.paused) {
    memory.paused = true;
    memory.pause_reason = job.orders.pause_reason;
    memory.paused_by_lost_store = job.orders.paused_by_lost_store;
  }
  if (job.memory.is_ours && !job.quarantine.empty() && memory.run_id == job.owner.run_id) {
    memory.quarantine = job.quarantine;
  }
  Recall(context.state, job, memory);
  if (job.current && job.current->name == memory.run_id) {
    // Its number under the other daemon: ranks would not be believed a memory of a higher one.
    job.current->run_number = std::max(job.current->run_number, job.owner.run_number);
  }
  job.store.due = true;
  FollowQuarantine(context, job);
  RecordEvent(context, job, "memory_recalled", job.last_known ? job.last_known->version : 0,
              absl::StrCat("rank ", hello.rank, " of run ", hello.run_id,
                           " carried what this daemon did not know: ", StopsText(job)));
}

void BeginRun(Job& job, const std::string& run_id) {
  if (job.owner.run_id == run_id) return;
  job.owner.run_id = run_id;
  job.quarantine.clear();
  job.decisions.last_step.reset();
  job.decisions.back_off = {};
  CloseRun(job.decisions.account);
  job.decisions.sampled = {};
  job.speeds = {};
  job.decisions.predictions = NewPredictions();
  job.decisions.chooser = {};
}

}  // namespace eplb::core
