#include "client/cli/daemon/status.h"

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "client/cli/daemon/job_json.h"
#include "client/cli/text.h"
#include "client/cli/watch.h"

#include "eplb/v1/query.pb.h"
#include <CLI/CLI.hpp>

namespace eplb::cli {
namespace {

constexpr int kMaxName = 24;

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
  return text + "\n";
}

Table JobTable(const v1::GetStatusResponse& response) {
  Table table{
      .heading = {"job", "state", "since", "ranks", "step", "version", "commits", "balancedness"},
      .right = {false, false, true, true, true, true, true, true},
      .rows = {}};
  for (const v1::JobStatus& job : response.jobs()) {
    table.rows.push_back(
        {Shortened(Printable(job.job()), kMaxName), Shortened(Printable(job.state()), kMaxName),
         Seconds(job.state_seconds()), absl::StrCat(job.connected_ranks(), "/", job.world_size()),
         Grouped(static_cast<int64_t>(job.step())), Grouped(static_cast<int64_t>(job.version())),
         Grouped(static_cast<int64_t>(job.commits())),
         // 0 stands for no window yet.
         job.balancedness() > 0 ? absl::StrFormat("%.4f", job.balancedness()) : "-"});
  }
  return table;
}

// What a row has no room for.
std::string Notes(const v1::JobStatus& job, const Terminal& terminal) {
  std::string text;
  const auto add = [&](const char* what, const std::string& sentence, Colour colour) {
    if (sentence.empty()) return;
    const std::string name =
        absl::StrCat(Shortened(Printable(job.job()), kMaxName), " ", what, ": ");
    absl::StrAppend(
        &text, "\n",
        Paint(terminal, colour, Wrapped(name + Printable(sentence), terminal.width, 2)));
  };
  add("waits for", job.waiting_for(), Colour::kYellow);
  add("is paused", job.paused() ? job.pause_reason() : "", Colour::kYellow);
  add("last decision", job.last_reason(), Colour::kNone);
  return text;
}

}  // namespace

Output RunStatus(const QueryOptions& options, const Terminal& terminal) {
  v1::GetStatusResponse response;
  if (const absl::Status status = AskStatus(options, &response); !status.ok()) {
    return QueryFailure(status);
  }
  if (options.format == Format::kJson) {
    return {.exit_code = kOk, .out = StatusToJson(response), .message = {}};
  }
  std::string text = Daemon(response, terminal);
  if (response.jobs().empty()) {
    absl::StrAppend(&text, "\n",
                    response.jobs_hidden() ? kNoVisibleJob : "no job has connected yet", "\n");
  } else {
    std::string notes;
    for (const v1::JobStatus& job : response.jobs()) notes += Notes(job, terminal);
    absl::StrAppend(&text, "\n", FormatTable(JobTable(response), terminal), notes,
                    notes.empty() ? "" : "\n");
  }
  return {.exit_code = kOk, .out = std::move(text), .message = {}};
}

void AddStatus(CLI::App& root, Command& command) {
  const auto options = std::make_shared<QueryOptions>();
  CLI::App& app = *root.add_subcommand("status", "The daemon and its jobs");
  AddQueryOptions(app, *options);
  AddWatched(app, command,
             [options](const Terminal& terminal) { return RunStatus(*options, terminal); });
}

}  // namespace eplb::cli
