#include "client/cli/status.h"

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "client/cli/flags.h"
#include "client/cli/job_json.h"
#include "client/cli/job_text.h"
#include "client/cli/text.h"
#include "client/cli/watch.h"

#include "eplb/v1/query.pb.h"

namespace eplb::cli {
namespace {

constexpr int kMaxStatusName = 24;

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

// Refusals of jobs that the daemon does not have, which are in no table.
std::string Refusals(const v1::GetStatusResponse& response, const Terminal& terminal) {
  std::string text;
  for (const v1::Refusal& refusal : response.refusals()) {
    const std::string sentence =
        absl::StrCat(Shortened(refusal.job(), kMaxStatusName), " is not served: ", refusal.reason(),
                     " (", Counted(refusal.count(), "refusal"), ", the newest ",
                     Seconds(refusal.seconds_ago()), " ago)");
    absl::StrAppend(&text, "\n", Paragraph(Printable(sentence), terminal, 2, Colour::kRed));
  }
  return text;
}

Table JobTable(const v1::GetStatusResponse& response, const Terminal& terminal) {
  Table table({"job", "state", ">since", ">ranks", ">step", ">version", ">run", ">measured",
               ">without EPLB", ">predicted", ">seen"});
  for (const v1::JobStatus& job : response.jobs()) {
    table.rows.push_back(
        {Shortened(Printable(job.job()), kMaxStatusName), Shortened(StateText(job), kMaxStatusName),
         Seconds(job.state_seconds()), absl::StrCat(job.connected_ranks(), "/", job.world_size()),
         Grouped(job.step()), Grouped(job.version()), RunText(job), RatioText(job.balancedness()),
         RatioText(job.balancedness_without_eplb()), RatioText(job.balancedness_predicted()),
         RatioText(job.balancedness_seen())});
  }
  // The job's notes repeat the ratios.
  DropToFit(table, {"run", "seen", "predicted", "without EPLB", "version", "since"},
            terminal.width);
  return table;
}

// The facts about a job for which the table has no room.
std::string Notes(const v1::JobStatus& job, const Terminal& terminal) {
  const std::string name = Shortened(Printable(job.job()), kMaxStatusName) + " ";
  std::string text = StateNotes(job, name, terminal) +
                     Paragraph(name + "balancedness " + BalancednessText(job), terminal);
  if (const std::string objective = ObjectiveText(job); !objective.empty()) {
    text += Paragraph(name + objective, terminal);
  }
  if (job.last_reason().empty()) return text;
  return text + Paragraph(name + "last decision: " + Printable(job.last_reason()), terminal);
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

}  // namespace

Output RunStatus(const StatusOptions& options, const Terminal& terminal) {
  v1::GetStatusResponse response;
  EPLB_RETURN_IF_ERROR(Ask(options.query, v1::GetStatusRequest(), &response));
  EPLB_RETURN_IF_ERROR(KeepJob(options.job, &response));
  if (options.query.format == Format::kJson) return StatusToJson(response, options.ranks);
  std::string text = Daemon(response, terminal) + "\n";
  if (response.jobs().empty()) {
    absl::StrAppend(&text, response.jobs_hidden() ? kNoVisibleJob : "no job has connected yet",
                    "\n");
  } else {
    text += FormatTable(JobTable(response, terminal), terminal);
  }
  for (const v1::JobStatus& job : response.jobs()) {
    absl::StrAppend(&text, "\n", Notes(job, terminal));
  }
  return text + Refusals(response, terminal);
}

void AddStatus(const Flags& root) {
  auto [flags, options] =
      AddCommand<StatusOptions>(root, "status", "Show the daemon and its jobs", &RunStatus);
  AddJobOption(flags, options.job, "Show only this job [all]");
  flags.Switch("--ranks", options.ranks, "Include every rank of every job (with -o json)");
  AddQueryOptions(flags, options.query, {kNotFound});
  AddWatched(flags);
}

}  // namespace eplb::cli
