#include "client/cli/daemon/status.h"

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"

#include "client/cli/daemon/job_json.h"
#include "client/cli/daemon/job_text.h"
#include "client/cli/text.h"
#include "client/cli/watch.h"

#include "eplb/v1/query.pb.h"
#include <CLI/CLI.hpp>

namespace eplb::cli {
namespace {

constexpr int kMaxStatusName = 24;
constexpr int kIndent = 2;

std::string Daemon(const v1::GetStatusResponse& response, const Terminal& terminal) {
  std::string text =
      absl::StrCat(Paint(terminal, Colour::kBold, "eplbd " + Printable(response.server_version())),
                   ", up ", Seconds(response.uptime_seconds()), ", term ", response.term(), ", ",
                   response.ready() ? Paint(terminal, Colour::kGreen, "ready")
                                    : Paint(terminal, Colour::kRed, "not ready"));
  if (!response.ready() && !response.not_ready_reason().empty()) {
    absl::StrAppend(&text, "\n",
                    Wrapped(Printable(response.not_ready_reason()), terminal.width, 0));
  }
  for (const std::string& warning : response.warnings()) {
    const std::string sentence = absl::StrCat("warning: ", Printable(warning));
    absl::StrAppend(&text, "\n",
                    Paint(terminal, Colour::kYellow, Wrapped(sentence, terminal.width, kIndent)));
  }
  return text + "\n";
}

// Of jobs that the daemon does not know: they are in no table.
std::string Refusals(const v1::GetStatusResponse& response, const Terminal& terminal) {
  std::string text;
  for (const v1::Refusal& refusal : response.refusals()) {
    const std::string sentence = Printable(
        absl::StrCat(Shortened(refusal.job(), kMaxStatusName), " is not served: ", refusal.reason(),
                     " (", Counted(static_cast<int64_t>(refusal.count()), "refusal"),
                     ", the newest ", Seconds(refusal.seconds_ago()), " ago)"));
    absl::StrAppend(&text, "\n",
                    Paint(terminal, Colour::kRed, Wrapped(sentence, terminal.width, kIndent)),
                    "\n");
  }
  return text;
}

Table JobTable(const v1::GetStatusResponse& response, const Terminal& terminal) {
  Table table{.heading = {"job", "state", "since", "ranks", "step", "version", "launch", "measured",
                          "static", "predicted", "seen"},
              .right = {false, false, true, true, true, true, true, true, true, true, true},
              .rows = {}};
  for (const v1::JobStatus& job : response.jobs()) {
    const auto if_set = [](bool is_set, double ratio) {
      return RatioText(is_set ? std::optional(ratio) : std::nullopt);
    };
    table.rows.push_back(
        {Shortened(Printable(job.job()), kMaxStatusName), Shortened(StateText(job), kMaxStatusName),
         Seconds(job.state_seconds()), absl::StrCat(job.connected_ranks(), "/", job.world_size()),
         Grouped(static_cast<int64_t>(job.step())), Grouped(static_cast<int64_t>(job.version())),
         LaunchText(job), RatioText(job.balancedness()), RatioText(job.balancedness_static()),
         if_set(job.has_balancedness_predicted(), job.balancedness_predicted()),
         if_set(job.has_balancedness_seen(), job.balancedness_seen())});
  }
  // The ratios are in the job's notes, too.
  constexpr std::string_view kOptional[] = {"launch", "seen",    "predicted",
                                            "static", "version", "since"};
  DropToFit(table, kOptional, terminal.width);
  return table;
}

// What a row has no room for.
std::string Notes(const v1::JobStatus& job, const Terminal& terminal) {
  const std::string name = Shortened(Printable(job.job()), kMaxStatusName) + " ";
  std::string text = StateNotes(job, name, terminal);
  absl::StrAppend(&text,
                  Wrapped(name + "balancedness " + BalancednessText(job), terminal.width, kIndent),
                  "\n");
  if (!job.last_reason().empty()) {
    absl::StrAppend(&text,
                    Wrapped(absl::StrCat(name, "last decision: ", Printable(job.last_reason())),
                            terminal.width, kIndent),
                    "\n");
  }
  return text;
}

}  // namespace

Output RunStatus(const StatusOptions& options, const Terminal& terminal) {
  v1::GetStatusResponse response;
  if (const absl::Status status = AskStatus(options.query, &response); !status.ok()) {
    return QueryFailure(status);
  }
  if (options.query.format == Format::kJson) {
    return {.exit_code = kOk, .out = StatusToJson(response, options.ranks), .message = {}};
  }
  std::string text = Daemon(response, terminal);
  if (response.jobs().empty()) {
    absl::StrAppend(&text, "\n",
                    response.jobs_hidden() ? kNoVisibleJob : "no job has connected yet", "\n",
                    Refusals(response, terminal));
    return {.exit_code = kOk, .out = std::move(text), .message = {}};
  }
  absl::StrAppend(&text, "\n", FormatTable(JobTable(response, terminal), terminal));
  for (const v1::JobStatus& job : response.jobs()) {
    absl::StrAppend(&text, "\n", Notes(job, terminal));
  }
  absl::StrAppend(&text, Refusals(response, terminal));
  return {.exit_code = kOk, .out = std::move(text), .message = {}};
}

void AddStatus(CLI::App& root, Command& command) {
  const auto options = std::make_shared<StatusOptions>();
  CLI::App& app = *root.add_subcommand("status", "The daemon and its jobs");
  app.add_flag("--ranks", options->ranks, "With -o json: every rank of every job, too");
  AddQueryOptions(app, options->query);
  AddWatched(app, command,
             [options](const Terminal& terminal) { return RunStatus(*options, terminal); });
}

}  // namespace eplb::cli
