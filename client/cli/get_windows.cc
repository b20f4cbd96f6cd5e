#include "client/cli/get_windows.h"

#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "client/cli/job_json.h"
#include "client/cli/job_text.h"
#include "client/cli/text.h"
#include "client/cli/watch.h"

#include "eplb/v1/query.pb.h"
#include <CLI/CLI.hpp>

namespace eplb::cli {
namespace {

constexpr int kWindowChartHeight = 4;

std::string RatioOrNone(bool is_set, double ratio) {
  return is_set ? absl::StrFormat("%.3f", ratio) : "-";
}

// Steps between two windows of one run that no window covers; 0: none.
uint64_t StepsMissing(const v1::Window& before, const v1::Window& after) {
  const uint64_t next = before.last_step() + 1;
  const bool is_gap = before.run_id() == after.run_id() && after.first_step() > next;
  return is_gap ? after.first_step() - next : 0;
}

Table WindowTable(const v1::ListWindowsResponse& response, const Terminal& terminal) {
  Table table{.heading = {"steps", "measured", "without EPLB", "versions", "coverage", "tokens"},
              .right = {true, true, true, true, true, true},
              .rows = {}};
  const v1::Window* before = nullptr;
  for (const v1::Window& window : response.windows()) {
    if (before != nullptr && StepsMissing(*before, window) > 0) {
      table.rows.push_back({absl::StrCat(before->last_step() + 1, "..", window.first_step() - 1),
                            "no window", "-", "-", "-", "-"});
    }
    table.rows.push_back(
        {absl::StrCat(window.first_step(), "..", window.last_step()),
         RatioOrNone(window.has_balancedness(), window.balancedness()),
         RatioOrNone(window.has_balancedness_without_eplb(), window.balancedness_without_eplb()),
         window.versions().empty() ? "-" : absl::StrJoin(window.versions(), ","),
         absl::StrFormat("%.1f %%", 100 * window.coverage()),
         Grouped(static_cast<int64_t>(window.tokens()))});
    before = &window;
  }
  constexpr std::string_view kOptional[] = {"tokens", "coverage", "versions"};
  DropToFit(table, kOptional, terminal.width);
  return table;
}

// A window without a figure, and a gap between two windows, is an empty column. Without any figure
// there is no chart.
std::string Chart(const v1::ListWindowsResponse& response, const Terminal& terminal) {
  const auto has_figure = [](const v1::Window& one) { return one.has_balancedness(); };
  if (std::none_of(response.windows().begin(), response.windows().end(), has_figure)) {
    return "\nNo window is measured; eplbctl status names the cause\n";
  }
  std::vector<double> values;
  const v1::Window* before = nullptr;
  for (const v1::Window& window : response.windows()) {
    if (before != nullptr && StepsMissing(*before, window) > 0) values.push_back(0);
    values.push_back(window.balancedness());
    before = &window;
  }
  std::string text = "\nMeasured balancedness from left to right; full height is 1\n";
  for (const std::string& line :
       ColumnChart(values, 1, kWindowChartHeight, terminal.width, terminal)) {
    absl::StrAppend(&text, absl::StripTrailingAsciiWhitespace(line), "\n");
  }
  return text;
}

}  // namespace

Output RunGetWindows(const GetWindowsOptions& options, const Terminal& terminal) {
  const absl::StatusOr<std::string> job = ChooseJob(options.query, options.job);
  if (!job.ok()) return QueryFailure(job.status());
  v1::ListWindowsRequest request;
  request.set_job(*job);
  request.set_limit(static_cast<uint32_t>(options.limit));
  v1::ListWindowsResponse response;
  if (const absl::Status status = Ask(options.query, request, &response); !status.ok()) {
    return QueryFailure(status);
  }
  if (options.query.format == Format::kJson) {
    return {.exit_code = kOk, .out = WindowsToJson(*job, response), .message = {}};
  }
  if (response.windows().empty()) {
    return {.exit_code = kOk,
            .out = absl::StrCat("job ", Printable(*job), " has no complete window yet\n"),
            .message = {}};
  }
  return {.exit_code = kOk,
          .out = FormatTable(WindowTable(response, terminal), terminal) + Chart(response, terminal),
          .message = {}};
}

void AddGetWindows(CLI::App& get, Command& command) {
  const auto options = std::make_shared<GetWindowsOptions>();
  CLI::App& app =
      *get.add_subcommand("windows", "Balancedness of a job's load windows, oldest first");
  AddJobOption(app, options->job);
  AddLimitOption(app, options->limit);
  AddQueryOptions(app, options->query, {kNotFound});
  AddWatched(app, command,
             [options](const Terminal& terminal) { return RunGetWindows(*options, terminal); });
}

}  // namespace eplb::cli
