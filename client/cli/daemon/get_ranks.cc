#include "client/cli/daemon/get_ranks.h"

#include <memory>
#include <string_view>

#include "absl/strings/str_cat.h"

#include "client/cli/daemon/job_json.h"
#include "client/cli/text.h"
#include "client/cli/watch.h"

#include "eplb/v1/query.pb.h"
#include <CLI/CLI.hpp>

namespace eplb::cli {
namespace {

std::string Version(uint64_t version) {
  return version == 0 ? "-" : Grouped(static_cast<int64_t>(version));
}

std::string SecondsOrNone(double seconds) { return seconds > 0 ? Seconds(seconds) : "-"; }

// "connected", "away 12.5 s", or how the rank ended.
std::string StateOf(const v1::RankStatus& rank) {
  if (rank.state().empty() ? rank.connected() : rank.state() == "connected") return "connected";
  if (!rank.state().empty() && rank.state() != "away") return Printable(rank.state());
  return absl::StrCat("away ", Seconds(rank.away_seconds()));
}

// via: the transport; its name would be wider than all its values. boundary: how long the newest
// switch held the rank's training.
Table RankTable(const v1::JobStatus& job, const Terminal& terminal) {
  Table table{.heading = {"rank", "state", "via", "step", "runs", "READY", "answer", "prepare",
                          "boundary", "drops"},
              .right = {true, false, false, true, true, true, false, true, true, true},
              .rows = {}};
  for (const v1::RankStatus& rank : job.ranks()) {
    table.rows.push_back(
        {absl::StrCat(rank.rank()), StateOf(rank),
         rank.transport().name().empty() ? "-" : Printable(rank.transport().name()),
         Grouped(static_cast<int64_t>(rank.step())), absl::StrCat(rank.running_version()),
         Version(rank.ready_version()), rank.answer().empty() ? "-" : Printable(rank.answer()),
         SecondsOrNone(rank.answer_seconds()), SecondsOrNone(rank.pause_seconds()),
         Grouped(static_cast<int64_t>(rank.dropped_steps()))});
  }
  constexpr std::string_view kOptional[] = {"READY", "via"};
  DropToFit(table, kOptional, terminal.width);
  return table;
}

}  // namespace

Output RunGetRanks(const GetRanksOptions& options, const Terminal& terminal) {
  const absl::StatusOr<std::string> name = ChooseJob(options.query, options.job);
  if (!name.ok()) return QueryFailure(name.status());
  v1::GetJobRequest request;
  request.set_job(*name);
  v1::JobStatus job;
  if (const absl::Status status = Ask(options.query, request, &job); !status.ok()) {
    return QueryFailure(status);
  }
  if (options.query.format == Format::kJson) {
    return {.exit_code = kOk, .out = RanksToJson(job), .message = {}};
  }
  if (job.ranks().empty()) {
    return {.exit_code = kOk,
            .out = absl::StrCat("no rank of job ", *name, " has said Hello to this daemon\n"),
            .message = {}};
  }
  return {.exit_code = kOk, .out = FormatTable(RankTable(job, terminal), terminal), .message = {}};
}

void AddGetRanks(CLI::App& get, Command& command) {
  const auto options = std::make_shared<GetRanksOptions>();
  CLI::App& app = *get.add_subcommand("ranks", "What each rank of a job runs and answered");
  AddJobOption(app, options->job);
  AddQueryOptions(app, options->query, {kNotFound});
  AddWatched(app, command,
             [options](const Terminal& terminal) { return RunGetRanks(*options, terminal); });
}

}  // namespace eplb::cli
