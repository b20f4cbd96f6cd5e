#include "client/cli/daemon/get_plans.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "client/cli/daemon/record_json.h"
#include "client/cli/text.h"
#include "client/cli/watch.h"

#include "eplb/v1/query.pb.h"
#include <CLI/CLI.hpp>

namespace eplb::cli {
namespace {

std::string Versions(const v1::Plan& plan) {
  if (plan.first_version() == 0) return "-";
  if (plan.last_version() <= plan.first_version()) return absl::StrCat(plan.first_version());
  return absl::StrCat(plan.first_version(), "..", plan.last_version());
}

std::string Result(const v1::Plan& plan) {
  if (plan.num_chunks() <= 1 || plan.chunks_committed() == 0) return Printable(plan.result());
  return absl::StrCat(Printable(plan.result()), " ", plan.chunks_committed(), "/",
                      plan.num_chunks());
}

std::string ReceivedText(const v1::Plan& plan) {
  if (!plan.has_received_bytes()) return "-";
  return absl::StrFormat("%.1f MB", static_cast<double>(plan.received_bytes()) / 1e6);
}

// A narrow terminal does without bytes and pauses.
Table PlanTable(const v1::ListPlansResponse& response, const Terminal& terminal) {
  constexpr int kWide = 100;
  const bool wide = terminal.width >= kWide;
  Table table{.heading = {"plan", "steps", "result", "versions", "balancedness", "transfers"},
              .right = {true, true, false, true, true, true},
              .rows = {}};
  if (wide) {
    table.heading.insert(table.heading.end(), {"received", "pause"});
    table.right.insert(table.right.end(), {true, true});
  }
  for (const v1::Plan& plan : response.plans()) {
    std::vector<std::string> row = {
        absl::StrCat(plan.plan()),
        absl::StrCat(plan.decided_first_step(), "..", plan.decided_last_step()),
        Result(plan),
        Versions(plan),
        absl::StrFormat("%.3f -> %.3f", plan.balancedness_before(), plan.balancedness_predicted()),
        Grouped(static_cast<int64_t>(plan.transfers()))};
    if (wide) {
      row.push_back(plan.chunks_committed() > 0 ? ReceivedText(plan) : "-");
      row.push_back(plan.pause_seconds() > 0 ? Seconds(plan.pause_seconds()) : "-");
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

// A table has no room for sentences.
std::string Reasons(const v1::ListPlansResponse& response, const Terminal& terminal) {
  constexpr int kShown = 3;
  std::string text;
  for (int i = 0; i < std::min(response.plans_size(), kShown); ++i) {
    const v1::Plan& plan = response.plans(i);
    absl::StrAppend(&text, "\n",
                    Wrapped(absl::StrCat("plan ", plan.plan(), ": ", Printable(plan.reason())),
                            terminal.width, 2),
                    "\n");
  }
  return text;
}

}  // namespace

Output RunGetPlans(const GetPlansOptions& options, const Terminal& terminal) {
  const absl::StatusOr<std::string> job = ChooseJob(options.query, options.job);
  if (!job.ok()) return QueryFailure(job.status());
  v1::ListPlansRequest request;
  request.set_job(*job);
  request.set_limit(static_cast<uint32_t>(options.limit));
  v1::ListPlansResponse response;
  if (const absl::Status status = Ask(options.query, request, &response); !status.ok()) {
    return QueryFailure(status);
  }
  if (options.query.format == Format::kJson) {
    return {.exit_code = kOk, .out = PlansToJson(*job, response), .message = {}};
  }
  if (response.plans().empty()) {
    return {.exit_code = kOk,
            .out = absl::StrCat("nothing has been decided for job ", *job, " yet\n"),
            .message = {}};
  }
  return {.exit_code = kOk,
          .out = FormatTable(PlanTable(response, terminal), terminal) + Reasons(response, terminal),
          .message = {}};
}

void AddGetPlans(CLI::App& get, Command& command) {
  const auto options = std::make_shared<GetPlansOptions>();
  CLI::App& app = *get.add_subcommand("plans", "Decisions of a job, newest first");
  AddJobOption(app, options->job);
  AddLimitOption(app, options->limit);
  AddQueryOptions(app, options->query, {kNotFound});
  AddWatched(app, command,
             [options](const Terminal& terminal) { return RunGetPlans(*options, terminal); });
}

}  // namespace eplb::cli
