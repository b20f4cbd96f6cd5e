#include "client/cli/job_text.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"

#include "base/text.h"
#include "client/cli/text.h"
#include "placement/decision/prediction.h"
#include "proto/wire/convert.h"
#include "proto/wire/message_json.h"
#include "proto/wire/messages.h"
#include "proto/wire/settings.h"

#include "eplb/v1/query.pb.h"

namespace eplb::cli {

std::string NameRanks(const std::vector<uint32_t>& ranks, size_t of_all) {
  return ranks.empty() ? "" : ListRanks(ranks, /*most=*/8, of_all);
}

namespace {

// True if the newest switch is no older than alert EplbTimeLost waits. An ended run gains no more.
bool SwitchedRecently(const v1::JobStatus& job) {
  constexpr double kPaysBackWithin = 1800;  // seconds
  if (HasEnded(job) || !job.has_last_switched_step() || !job.has_step_seconds()) return false;
  if (job.step() < job.last_switched_step()) return false;  // the switch was in an earlier run
  const auto steps = static_cast<double>(job.step() - job.last_switched_step());
  return steps * job.step_seconds() < kPaysBackWithin;
}

bool Observes(const v1::JobStatus& job) { return job.policy().mode() == "observe"; }

// Sentences about the GPUs whose speed is not 1.
std::vector<std::string> SpeedTexts(const v1::JobStatus& job) {
  constexpr size_t kMostShown = 4;
  std::vector<std::string> texts;
  for (const v1::GpuSpeed& one : job.gpu_speeds()) {
    const std::string used =
        one.in_use() == 1
            ? std::string("decisions use no speed for it")
            : absl::StrFormat("its load is tokens / %.2f in every figure", one.in_use());
    std::string text = Printable(one.reason());
    if (one.source() != "measured") {
      absl::StrAppend(&text, text.empty() ? "" : "; ", "GPU ", one.gpu(), " is in ",
                      one.source() == "avoided" ? "avoid_gpus" : "stated_speeds");
    } else if (text.empty()) {
      text = absl::StrCat("GPU ", one.gpu(), " is no longer slow");
    }
    texts.push_back(absl::StrCat(text, "; ", used));
  }
  if (texts.size() > kMostShown) {
    const size_t others = texts.size() - kMostShown;
    texts.resize(kMostShown);
    texts.push_back(absl::StrCat("and ", others, " more GPUs (-o json lists all)"));
  }
  return texts;
}

}  // namespace

bool HasEnded(const v1::JobStatus& job) {
  return job.ending() == v1::RUN_ENDING_FINISHED || job.ending() == v1::RUN_ENDING_FAILED;
}

std::string StateText(const v1::JobStatus& job) {
  std::string text = wire::EnumText(job.state());
  if (HasEnded(job)) return text;
  std::vector<std::string> words;
  if (!job.not_counting_reason().empty()) words.emplace_back("NOT_COUNTING");
  if (!job.stalled().empty()) {
    words.emplace_back("stalled");
  } else if (job.ending() == v1::RUN_ENDING_UNSPECIFIED) {
    if (job.stuck_seconds() > 0) {
      words.emplace_back("stuck");
    } else if (job.state() == v1::JOB_STATE_RECOVERING) {
      words.emplace_back("waits");
    }
  }
  if (job.paused()) words.emplace_back("paused");
  if (Observes(job)) words.emplace_back("observe");
  if (!words.empty()) absl::StrAppend(&text, " (", absl::StrJoin(words, ", "), ")");
  return text;
}

std::string StepText(const v1::JobStatus& job) {
  return job.has_step() ? absl::StrCat("step ", Grouped(job.step())) : "step -";
}

std::string RanksText(const v1::JobStatus& job) {
  return job.has_world_size() ? absl::StrCat(job.connected_ranks(), "/", job.world_size()) : "";
}

bool IsAbsent(const v1::JobStatus& job) {
  return !job.has_world_size() && job.ending() == v1::RUN_ENDING_UNSPECIFIED;
}

std::string StuckAdvice(const v1::JobStatus& job) {
  const bool lives = job.ending() == v1::RUN_ENDING_UNSPECIFIED ||
                     (job.ending() == v1::RUN_ENDING_LOST && !job.led_elsewhere());
  const bool abandoned = lives && job.stuck_seconds() > 0 && job.connected_ranks() == 0;
  return abandoned ? "start the job again, or end it with eplbctl forget; " : "";
}

std::string NotCountingText(const v1::JobStatus& job) {
  if (job.not_counting_reason().empty()) return "";
  return Printable(absl::StrCat("NOT_COUNTING: ", job.not_counting_reason()));
}

double CandidateDeadline(const v1::CandidateStatus& candidate) {
  constexpr double kOfOlderDaemons = 60;  // they do not send it
  return candidate.deadline_seconds() > 0 ? candidate.deadline_seconds() : kOfOlderDaemons;
}

std::string CandidateText(const v1::JobStatus& job) {
  if (!job.has_candidate()) return "";
  const v1::CandidateStatus& candidate = job.candidate();
  std::string text = absl::StrCat(
      "a newer run, ", candidate.run_id(), ", is not balanced: ", candidate.registered_ranks(),
      " of ", candidate.world_size(), " ranks are registered after ", Seconds(candidate.seconds()));
  if (!candidate.waits().empty()) absl::StrAppend(&text, "; it waits for ", candidate.waits());
  const bool gathers = candidate.registered_ranks() < candidate.world_size();
  if (gathers && candidate.seconds() > CandidateDeadline(candidate)) {
    absl::StrAppend(&text, "; limits.start_deadline is ", Seconds(CandidateDeadline(candidate)));
  }
  return Printable(text);
}

std::string RefusedText(const v1::JobStatus& job) {
  if (job.refusal().empty()) return "";
  return Printable(absl::StrCat(
      "refused ", job.refused_hellos(),
      job.refused_hellos() == 1 ? " registration, the newest: " : " registrations, the newest: ",
      job.refusal()));
}

std::string BalancednessText(const v1::JobStatus& job) {
  std::string text;
  if (!job.has_balancedness()) {
    const std::string& reason = job.not_measured_reason();  // empty: of an older daemon
    text = Printable(absl::StrCat("measured - (",
                                  reason.empty() ? "no load window is complete yet" : reason, ")"));
  } else {
    text = absl::StrFormat("measured %.4f on steps %d..%d", job.balancedness(),
                           job.measured_first_step(), job.measured_last_step());
  }
  if (job.has_balancedness_without_eplb()) {
    absl::StrAppendFormat(&text, " | without EPLB %.4f", job.balancedness_without_eplb());
  } else if (job.has_balancedness()) {
    absl::StrAppend(&text, " | without EPLB -, a rank or the daemon is too old to report it");
  }
  if (job.has_balancedness_static()) {
    absl::StrAppendFormat(&text, " | static %.4f", job.balancedness_static());
  }
  if (job.has_balancedness_predicted()) {
    Forecast forecast{.predicted = job.balancedness_predicted(),
                      .computed = !job.has_prediction_error() && !job.has_prediction_evidence()};
    if (job.has_prediction_error()) forecast.error = job.prediction_error();
    if (job.has_balancedness_seen()) forecast.seen = job.balancedness_seen();
    absl::StrAppend(&text, " | ", PredictedText(forecast));
  }
  return text;
}

SplitMode SplitOf(const v1::JobStatus& job) {
  return job.split() == wire::SplitName(SplitMode::kBatch) ? SplitMode::kBatch : SplitMode::kEqual;
}

std::string ObjectiveText(const v1::JobStatus& job) {
  if (job.split().empty()) return "";
  if (SplitOf(job) == SplitMode::kEqual) return "objective: equal shares";
  std::string text = "objective: exact split per batch";
  if (job.measured_split() == wire::SplitName(SplitMode::kEqual)) {
    absl::StrAppend(&text,
                    "; measured is of equal shares, for the ranks did not report splits of all "
                    "tokens of these steps");
  }
  return text;
}

std::string SettingsText(const v1::PolicySettings& settings) {
  const absl::StatusOr<wire::SettingsPatch> patch = wire::FromProto(settings);
  return patch.ok() ? Printable(wire::PatchText(*patch))
                    : Printable(std::string(patch.status().message()));
}

bool LostTime(const v1::JobStatus& job) {
  return job.has_saved_seconds() && job.saved_seconds() < 0 && !SwitchedRecently(job);
}

std::string SavedFigureText(const v1::JobStatus& job) {
  if (!job.has_saved_seconds()) {
    // An older daemon sends no basis.
    const std::string& why = job.saved_basis();
    return Printable("time saved is " + (why.empty() ? std::string("not known") : why));
  }
  const bool is_gross = job.saved_basis().empty();  // an older daemon's
  const std::string pauses =
      absl::StrCat(is_gross ? "before" : "net of", " pauses of ", Seconds(job.spent_seconds()));
  const std::string about = job.saved_is_assumed() ? "about " : "";
  const bool lost = job.saved_seconds() < 0;
  return absl::StrCat(about, Seconds(std::abs(job.saved_seconds())), lost ? " LOST, " : " saved, ",
                      pauses);
}

std::string SavedText(const v1::JobStatus& job) {
  std::string text = SavedFigureText(job);
  if (job.saved_seconds() >= 0) return text;
  return absl::StrCat(text, LostTime(job) ? ": one slot per expert would have been faster"
                                          : ": the newest switch may still pay back its pause");
}

std::vector<StateNote> StateNotesOf(const v1::JobStatus& job) {
  std::vector<StateNote> notes;
  const auto add = [&notes](const std::string& text, Colour colour, int trouble) {
    if (!text.empty()) notes.push_back({Printable(text), colour, trouble});
  };
  if (job.ending() != v1::RUN_ENDING_UNSPECIFIED) {
    const bool failed = job.ending() == v1::RUN_ENDING_FAILED;
    const bool lost = job.ending() == v1::RUN_ENDING_LOST;
    add(absl::StrCat(lost ? "was lost" : wire::EnumText(job.ending()), ": ", job.end_reason()),
        failed ? Colour::kRed : Colour::kNone, failed || lost ? 2 : 0);
  }
  add(NotCountingText(job), Colour::kRed, 2);
  if (!job.stalled().empty()) {
    add(absl::StrCat("STALLED (", job.stalled(), "): ", job.stalled_reason()), Colour::kRed, 2);
  }
  const bool lives = !HasEnded(job);
  if (lives && !job.engine().empty()) {
    add(absl::StrCat(job.engine(), " asks for placements; a step is a question"), Colour::kNone, 0);
  }
  if (lives && !job.worse_reason().empty()) {
    add("WORSE: " + job.worse_reason(), Colour::kYellow, 1);
  } else if (lives && job.balancedness() < 0.999 * job.balancedness_without_eplb()) {
    add("less even than without EPLB", Colour::kYellow, 1);
  }
  if (lives && LostTime(job)) add(SavedText(job), Colour::kYellow, 1);
  add(CandidateText(job), Colour::kYellow, 1);
  add(RefusedText(job), Colour::kYellow, 1);
  if (!lives) return notes;  // it waits for no rank, and nothing of it can be paused
  if (job.paused()) {
    // The daemon's sentence begins with the word, or with what paused the job, such as a rollback.
    absl::string_view reason = job.pause_reason();
    const bool has_word = absl::ConsumePrefix(&reason, "paused");
    add(absl::StrCat("PAUSED", has_word || reason.empty() ? "" : ": ", reason), Colour::kYellow, 1);
  }
  if (Observes(job)) {
    add("observe: decisions are made and explained, none is applied", Colour::kYellow, 0);
  }
  for (const std::string& sentence : SpeedTexts(job)) add(sentence, Colour::kYellow, 0);
  const bool incomplete = job.connected_ranks() < job.world_size();
  if (!job.waiting_for().empty()) {
    std::string text = "waits for " + job.waiting_for();
    int trouble = incomplete || job.state() == v1::JOB_STATE_RECOVERING ? 1 : 0;
    if (job.stuck_seconds() > 0) {
      text = absl::StrCat("stuck for ", Seconds(job.stuck_seconds()), ": ", StuckAdvice(job), text);
      trouble = 2;
    }
    if (job.state() == v1::JOB_STATE_QUARANTINE) trouble = 2;
    add(text, Colour::kYellow, trouble);
  } else if (incomplete) {
    add(absl::StrCat(job.connected_ranks(), " of ", job.world_size(), " ranks are connected"),
        Colour::kYellow, 1);
  }
  return notes;
}

StateNote TroubleOf(const v1::JobStatus& job) {
  const std::vector<StateNote> notes = StateNotesOf(job);
  const auto worst = std::ranges::max_element(notes, {}, &StateNote::trouble);
  return worst == notes.end() || worst->trouble == 0 ? StateNote() : *worst;
}

std::string StateNotes(const v1::JobStatus& job, const std::string& before,
                       const Terminal& terminal) {
  std::string text;
  for (const StateNote& note : StateNotesOf(job)) {
    text += Paragraph(before + note.text, terminal, 2, note.colour);
  }
  return text;
}

}  // namespace eplb::cli
