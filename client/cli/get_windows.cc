#include "client/cli/get_windows.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "client/cli/flags.h"
#include "client/cli/job_json.h"
#include "client/cli/job_text.h"
#include "client/cli/text.h"
#include "client/cli/watch.h"

#include "eplb/v1/query.pb.h"

namespace eplb::cli {
namespace {

constexpr int kWindowChartHeight = 4;

// Steps between two windows of one run that no window covers; 0: none.
uint64_t StepsMissing(const v1::Window& before, const v1::Window& after) {
  const uint64_t next = before.last_step() + 1;
  const bool is_gap = before.run_id() == after.run_id() && after.first_step() > next;
  return is_gap ? after.first_step() - next : 0;
}

Table WindowTable(const v1::ListWindowsResponse& response, const Terminal& terminal) {
  Table table({">steps", ">measured", ">without EPLB", ">versions", ">coverage", ">tokens"});
  const v1::Window* before = nullptr;
  for (const v1::Window& window : response.windows()) {
    if (before != nullptr && StepsMissing(*before, window) > 0) {
      table.rows.push_back({absl::StrCat(before->last_step() + 1, "..", window.first_step() - 1),
                            "no window", "-", "-", "-", "-"});
    }
    table.rows.push_back({absl::StrCat(window.first_step(), "..", window.last_step()),
                          OrDash(window.has_balancedness(), FigureText(window.balancedness(), 3)),
                          OrDash(window.has_balancedness_without_eplb(),
                                 FigureText(window.balancedness_without_eplb(), 3)),
                          OrDash(!window.versions().empty(), absl::StrJoin(window.versions(), ",")),
                          absl::StrFormat("%.1f %%", 100 * window.coverage()),
                          Grouped(static_cast<int64_t>(window.tokens()))});
    before = &window;
  }
  DropToFit(table, {"tokens", "coverage", "versions"}, terminal.width);
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

Output RunGetWindows(const ListQuery& options, const Terminal& terminal) {
  v1::ListWindowsRequest request;
  request.set_limit(static_cast<uint32_t>(options.limit));
  v1::ListWindowsResponse response;
  EPLB_ASSIGN_OR_RETURN(const std::string job,
                        AskAboutJob(options.query, options.job, request, &response));
  if (options.query.format == Format::kJson) return ListToJson(job, "windows", response);
  if (response.windows().empty()) {
    return absl::StrCat("job ", Printable(job), " has no complete window yet\n");
  }
  return FormatTable(WindowTable(response, terminal), terminal) + Chart(response, terminal);
}

void AddGetWindows(const Flags& get) {
  auto [flags, options] = AddCommand<ListQuery>(
      get, "windows", "Show the balancedness of a job's load windows, oldest first",
      &RunGetWindows);
  AddJobOption(flags, options.job);
  AddLimitOption(flags, options.limit);
  AddQueryOptions(flags, options.query, {kNotFound});
  AddWatched(flags);
}

}  // namespace eplb::cli
