// `eplbctl status` and `eplbctl get jobs`: the daemon and its jobs.
#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "client/cli/commands.h"
#include "client/cli/job_text.h"
#include "client/cli/message_table.h"
#include "client/cli/text.h"
#include "proto/wire/message_json.h"
#include "proto/wire/names.h"

#include "eplb/v1/query.pb.h"
#include <nlohmann/json.hpp>

namespace eplb::cli {
namespace {

using Json = nlohmann::ordered_json;

Json StatusJson(const v1::GetStatusResponse& response, bool with_ranks) {
  Json status = wire::ToJson(response);
  if (!with_ranks) {
    for (Json& job : status["jobs"]) job.erase("ranks");
  }
  return status;
}

std::string Daemon(const v1::GetStatusResponse& response, const Terminal& terminal) {
  std::string text =
      absl::StrCat(Paint(terminal, Colour::kBold, "eplbd " + Printable(response.server_version())),
                   ", up ", Seconds(response.uptime_seconds()), ", term ", response.term(), ", ",
                   response.ready() ? Paint(terminal, Colour::kGreen, "ready")
                                    : Paint(terminal, Colour::kRed, "not ready"));
  if (!response.leader().empty()) {
    absl::StrAppend(&text, ", leads at ", Printable(response.leader()), " by ",
                    Printable(response.store()));
  }
  text += "\n";
  if (!response.ready()) text += Paragraph(Printable(response.not_ready_reason()), terminal, 0);
  for (const std::string& warning : response.warnings()) {
    text += Paragraph("warning: " + Printable(warning), terminal, 2, Colour::kYellow);
  }
  return text;
}

// `reason` is cut, the name is whole: it is what the next command asks for.
std::string NamedLine(const std::string& name, const std::string& reason,
                      const Terminal& terminal) {
  const int room = terminal.width - DisplayWidth(name);
  return absl::StrCat(name, Shortened(reason, std::max(room, kMostText)));
}

// Refusals of jobs that the daemon does not have, which are in no table.
std::string Refusals(const v1::GetStatusResponse& response, const Terminal& terminal) {
  std::string text;
  for (const v1::Refusal& refusal : response.refusals()) {
    const std::string sentence =
        absl::StrCat(refusal.job(), " is not served: ", refusal.reason(), " (",
                     Counted(refusal.count(), "refusal"), ", the newest ",
                     Seconds(refusal.seconds_ago()), " ago)");
    absl::StrAppend(&text, "\n", Paragraph(Printable(sentence), terminal, 2, Colour::kRed));
  }
  return text;
}

std::string NameCell(const v1::JobStatus& job) { return Printable(job.job()); }

std::string StateCell(const v1::JobStatus& job) { return Shortened(StateText(job), kMostText); }

std::string SavedCell(const v1::JobStatus& job) {
  if (!job.has_saved_seconds()) return "";
  return absl::StrCat(job.saved_is_assumed() ? "~" : "", Seconds(job.saved_seconds()));
}

std::string JobTable(const v1::GetStatusResponse& response, const Terminal& terminal) {
  Table table = MessageTable(response.jobs(), terminal,
                             {{"job", InWords<v1::JobStatus>(NameCell)},
                              {"state", InWords<v1::JobStatus>(StateCell)},
                              {"saved_seconds", InWords<v1::JobStatus>(SavedCell)},
                              {"connected_ranks", InWords<v1::JobStatus>(RanksText)}});
  table.named = true;
  return FormatTable(std::move(table), terminal);
}

// The first line: time saved by all jobs together.
std::string SavedByAll(const v1::GetStatusResponse& response, const Terminal& terminal) {
  v1::JobStatus sum;
  sum.set_saved_basis("not known yet");  // replaced by a known one
  int lost = 0;
  int known = 0;
  for (const v1::JobStatus& job : response.jobs()) {
    if (!job.has_saved_seconds()) continue;
    ++known;
    sum.set_saved_basis(job.saved_basis());
    sum.set_saved_seconds(sum.saved_seconds() + job.saved_seconds());
    sum.set_spent_seconds(sum.spent_seconds() + job.spent_seconds());
    if (job.saved_is_assumed()) sum.set_saved_is_assumed(true);
    if (LostTime(job)) ++lost;
  }
  const int unknown = response.jobs_size() - known;
  const std::string text =
      absl::StrCat(Counted(response.jobs_size(), "job"), ": ", SavedFigureText(sum),
                   lost > 0 ? absl::StrCat("; ", lost, " lost time") : "",
                   known > 0 && unknown > 0 ? absl::StrCat("; ", unknown, " not known") : "");
  return Paragraph(text, terminal, 2, lost > 0 ? Colour::kYellow : Colour::kNone);
}

// Sorts by the column that `order` names, those without a value last; empty: trouble first, then
// what runs.
void SortJobs(const std::string& order, v1::GetStatusResponse& response) {
  using Job = v1::JobStatus;
  const auto by = [&response](const auto& key) {
    std::ranges::stable_sort(*response.mutable_jobs(), {}, key);
  };
  constexpr double kLast = std::numeric_limits<double>::infinity();
  if (order == "name") return by([](const Job& job) { return job.job(); });
  if (order == "state") return by([](const Job& job) { return StateText(job); });
  if (order == "saved") {
    return by([](const Job& job) { return job.has_saved_seconds() ? job.saved_seconds() : kLast; });
  }
  if (order == "measured") {
    return by([](const Job& job) { return job.has_balancedness() ? job.balancedness() : kLast; });
  }
  by([](const Job& job) {
    const int trouble = TroubleOf(job).trouble;
    return trouble == 0 && HasEnded(job) ? 1 : -trouble;
  });
}

// Leaves the jobs whose name or state has `part`, in upper or lower case.
void KeepMatching(const std::string& part, v1::GetStatusResponse& response) {
  const auto matches = [part = absl::AsciiStrToLower(part)](const v1::JobStatus& job) {
    return absl::StrContains(absl::AsciiStrToLower(job.job() + " " + StateText(job)), part);
  };
  auto* jobs = response.mutable_jobs();
  jobs->erase(std::remove_if(jobs->begin(), jobs->end(), std::not_fn(matches)), jobs->end());
}

// A line for each of the worst troubles, and one for the jobs that are not served.
std::string Troubles(const v1::GetStatusResponse& response, const Terminal& terminal) {
  constexpr int kShown = 3;
  std::string text;
  int count = 0;
  for (const v1::JobStatus& job : response.jobs()) {
    const StateNote trouble = TroubleOf(job);
    if (trouble.trouble == 0 || ++count > kShown) continue;
    const std::string line = NamedLine(NameCell(job) + ": ", trouble.text, terminal);
    absl::StrAppend(&text, Paint(terminal, trouble.colour, line), "\n");
  }
  if (count > kShown) absl::StrAppend(&text, "and ", count - kShown, " more: eplbctl doctor\n");
  if (const int refused = response.refusals_size(); refused > 0) {
    const std::string others = refused > 1
                                   ? absl::StrCat(" and ", refused - 1, " more are not served: ")
                                   : " is not served: ";
    const std::string line = NamedLine(Printable(response.refusals(0).job()) + others,
                                       Printable(response.refusals(0).reason()), terminal);
    absl::StrAppend(&text, Paint(terminal, Colour::kRed, line), "\n");
  }
  return text.empty() ? text : "\n" + text;
}

// The facts about a job for which the table has no room.
std::string Notes(const v1::JobStatus& job, const Terminal& terminal) {
  const std::string name = NameCell(job) + " ";
  std::string text = StateNotes(job, name, terminal) +
                     Paragraph(name + "balancedness " + BalancednessText(job), terminal);
  if (const std::string objective = ObjectiveText(job); !objective.empty()) {
    text += Paragraph(name + objective, terminal);
  }
  if (job.has_saved_seconds() && !job.saved_basis().empty()) {
    text += Paragraph(absl::StrCat(name, "saved: ", Printable(job.saved_basis())), terminal);
  }
  if (job.last_reason().empty()) return text;
  return text + Paragraph(name + "last decision: " + ShortReason(job.last_reason()), terminal);
}

// Leaves one job and its refusals. errors: NotFound when the daemon has neither.
absl::Status KeepJob(const std::string& job, v1::GetStatusResponse* response) {
  if (job.empty()) return absl::OkStatus();
  const auto is_another = [&job](const auto& one) { return one.job() != job; };
  auto* jobs = response->mutable_jobs();
  jobs->erase(std::remove_if(jobs->begin(), jobs->end(), is_another), jobs->end());
  auto* refusals = response->mutable_refusals();
  refusals->erase(std::remove_if(refusals->begin(), refusals->end(), is_another), refusals->end());
  if (!jobs->empty() || !refusals->empty()) return absl::OkStatus();
  return NotFound("the daemon has no job ", Printable(job));
}

std::string JobNameTable(const v1::GetStatusResponse& response, const Terminal& terminal) {
  Table table({"job", "state", "policy", ">layers", ">experts", ">slots", ">GPUs", ">nodes",
               ">ranks", ">version", ">run", "run id"});
  for (const v1::JobStatus& job : response.jobs()) {
    const v1::Shape& shape = job.shape();
    const std::string policy = Printable(job.policy().name());
    table.rows.push_back({NameCell(job), StateCell(job), OrDash(!policy.empty(), policy),
                          absl::StrCat(shape.num_layers()), absl::StrCat(shape.num_experts()),
                          absl::StrCat(shape.num_slots()), absl::StrCat(shape.num_gpus()),
                          absl::StrCat(shape.num_nodes()),
                          OrDash(job.has_world_size(), absl::StrCat(job.world_size())),
                          absl::StrCat(job.version()),
                          OrDash(job.run_number() > 0, absl::StrCat(job.run_number())),
                          Shortened(Printable(job.run_id()), kMostText / 2)});
  }
  table.drop = {"run id", "run", "nodes", "policy", "version"};
  table.named = true;
  return FormatTable(table, terminal);
}

// The names of jobs, for scripts and completion. A shell may expand what it reads, so names that no
// daemon of ours accepts are left out.
std::string Names(const v1::GetStatusResponse& response) {
  std::string text;
  for (const v1::JobStatus& job : response.jobs()) {
    if (!wire::CheckPlainName("job", job.job()).ok()) continue;
    absl::StrAppend(&text, job.job(), "\n");
  }
  return text;
}

absl::Status AskJobs(const GetOptions& options, v1::GetStatusResponse* response) {
  if (options.job.empty()) return Ask(options.query, v1::GetStatusRequest(), response);
  return AskAboutJob(options.query, options.job, v1::GetJobRequest(), response->add_jobs())
      .status();
}

}  // namespace

std::string JobReport(const v1::JobStatus& job, const std::string& heading,
                      const Terminal& terminal) {
  v1::GetStatusResponse one;
  *one.add_jobs() = job;
  const std::string saved = absl::StrCat(NameCell(job), ": ", SavedText(job));
  return absl::StrCat(
      Paragraph(saved, terminal, 2, LostTime(job) ? Colour::kYellow : Colour::kNone), heading,
      JobTable(one, terminal), "\n", Notes(job, terminal));
}

Output RunStatus(const GetOptions& options, const Terminal& terminal) {
  v1::GetStatusResponse response;
  EPLB_RETURN_IF_ERROR(Ask(options.query, v1::GetStatusRequest(), &response));
  EPLB_RETURN_IF_ERROR(KeepJob(options.job, &response));
  if (!options.filter.empty()) KeepMatching(options.filter, response);
  const bool by_name = options.query.format == Format::kJson && options.sort.empty();
  if (!by_name) SortJobs(options.sort, response);
  if (options.query.format == Format::kJson) {
    return wire::DumpJson(StatusJson(response, options.ranks)) + "\n";
  }
  std::string text;
  if (response.jobs_size() > 1) {
    return absl::StrCat(SavedByAll(response, terminal), Daemon(response, terminal), "\n",
                        JobTable(response, terminal), Troubles(response, terminal));
  }
  if (response.jobs().empty()) {
    text = Daemon(response, terminal) + "\n" +
           (!options.filter.empty()  ? "no job matches --filter"
            : response.jobs_hidden() ? kNoVisibleJob
                                     : "no job has connected yet") +
           "\n";
  } else {
    text = JobReport(response.jobs(0), Daemon(response, terminal) + "\n", terminal);
  }
  return text + Refusals(response, terminal);
}

Output RunGetJobs(const GetOptions& options, const Terminal& terminal) {
  v1::GetStatusResponse response;
  EPLB_RETURN_IF_ERROR(AskJobs(options, &response));
  if (options.names) return Names(response);
  if (options.query.format == Format::kJson) {
    Json status = StatusJson(response, options.ranks);
    Json jobs;
    for (const char* key : {"jobs", "jobs_hidden", "refusals", "warnings"}) {
      jobs[key] = std::move(status[key]);
    }
    return wire::DumpJson(jobs) + "\n";
  }
  const bool none_visible = response.jobs().empty() && response.jobs_hidden();
  return {kOk, JobNameTable(response, terminal), none_visible ? kNoVisibleJob : ""};
}

}  // namespace eplb::cli
