#include "client/cli/daemon/doctor.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "client/cli/daemon/checks.h"
#include "client/cli/text.h"
#include "placement/status_macros.h"

#include "eplb/v1/query.pb.h"
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

namespace eplb::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kPlansLookedAt = 10;

const char* ResultName(Check::Result result) {
  switch (result) {
    case Check::Result::kOk:
      return "ok";
    case Check::Result::kWarning:
      return "warning";
    case Check::Result::kFailed:
      return "failed";
  }
  return "";
}

Colour ColourOf(Check::Result result) {
  if (result == Check::Result::kOk) return Colour::kGreen;
  return result == Check::Result::kWarning ? Colour::kYellow : Colour::kRed;
}

absl::StatusOr<std::vector<Check>> AskAll(const DoctorOptions& options) {
  v1::GetStatusResponse status;
  EPLB_RETURN_IF_ERROR(AskStatus(options.query, &status));
  std::vector<Check> checks = CheckDaemon(status, options.job);
  bool found = options.job.empty() ||
               std::any_of(checks.begin(), checks.end(), [&options](const Check& check) {
                 return check.scope == options.job;  // refused, and not known
               });
  for (const v1::JobStatus& job : status.jobs()) {
    if (!options.job.empty() && job.job() != options.job) continue;
    found = true;
    const absl::StatusOr<wire::PlacementBody> placement = AskPlacement(options.query, job.job());
    v1::ListPlansRequest request;
    request.set_job(job.job());
    request.set_limit(kPlansLookedAt);
    v1::ListPlansResponse plans;
    EPLB_RETURN_IF_ERROR(Ask(options.query, request, &plans));
    for (Check& check : CheckJob(job, placement, plans)) checks.push_back(std::move(check));
  }
  if (!found) return absl::NotFoundError(absl::StrCat("no job ", options.job));
  return checks;
}

std::string ToJson(const std::vector<Check>& checks, bool healthy) {
  Json list = Json::array();
  for (const Check& check : checks) {
    list.push_back({{"scope", check.scope},
                    {"check", check.name},
                    {"result", ResultName(check.result)},
                    {"detail", check.detail}});
  }
  const Json json = {{"healthy", healthy}, {"checks", std::move(list)}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string ToText(const std::vector<Check>& checks, const Terminal& terminal) {
  std::string text;
  for (const Check& check : checks) {
    constexpr int kColumn = 9;  // "warning" and two spaces
    const std::string result = Paint(terminal, ColourOf(check.result), ResultName(check.result));
    const std::string body =
        absl::StrCat(Printable(check.scope), " ", check.name, ": ", Printable(check.detail));
    absl::StrAppend(&text, Beside(result, kColumn, body, terminal), "\n");
  }
  return text;
}

}  // namespace

Output RunDoctor(const DoctorOptions& options, const Terminal& terminal) {
  std::vector<Check> checks;
  if (!options.run.empty()) {
    absl::StatusOr<Check> check = CheckRun(options.run);
    if (!check.ok()) return UsageFailure(check.status());
    checks.push_back(*std::move(check));
  } else {
    absl::StatusOr<std::vector<Check>> asked = AskAll(options);
    if (!asked.ok()) return QueryFailure(asked.status());
    checks = *std::move(asked);
  }
  const bool healthy = std::all_of(checks.begin(), checks.end(), [&options](const Check& check) {
    return check.result == Check::Result::kOk ||
           (check.result == Check::Result::kWarning && !options.strict);
  });
  return {.exit_code = healthy ? kOk : kConditionNotMet,
          .out = options.query.format == Format::kJson ? ToJson(checks, healthy)
                                                       : ToText(checks, terminal),
          .message = {}};
}

void AddDoctor(CLI::App& root, Command& command) {
  const auto options = std::make_shared<DoctorOptions>();
  CLI::App& app = *root.add_subcommand("doctor", "Is everything well? Exit 8 when a check fails");
  AddJobOption(app, options->job, "Only this job [all]");
  app.add_option("--run", options->run, "Check the ranks' logs in this folder, not a daemon")
      ->type_name("DIR");
  app.add_flag("--strict", options->strict, "A warning is exit 8, too");
  AddQueryOptions(app, options->query, {kNotFound, kConditionNotMet});
  app.callback([options, &command] {
    command = [options](const Terminal& terminal) { return RunDoctor(*options, terminal); };
  });
}

}  // namespace eplb::cli
