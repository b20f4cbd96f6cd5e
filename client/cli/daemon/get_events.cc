#include "client/cli/daemon/get_events.h"

#include <memory>

#include "absl/strings/str_cat.h"

#include "client/cli/daemon/record_json.h"
#include "client/cli/text.h"
#include "client/cli/watch.h"

#include "eplb/v1/query.pb.h"
#include <CLI/CLI.hpp>

namespace eplb::cli {
namespace {

// "41  2026-11-21T10:02:03.123Z  committed  v12  version 12 (chunk 1 of 2) was .."
std::string EventLine(const v1::JobEvent& event, const Terminal& terminal) {
  std::string text =
      absl::StrCat(event.sequence(), "  ", TimeText(event.unix_micros()), "  ",
                   Paint(terminal, Colour::kBold, Printable(event.name())), "  v", event.version());
  if (!event.actor().empty()) absl::StrAppend(&text, "  by ", Printable(event.actor()));
  absl::StrAppend(&text, "\n", Beside("", 2, Printable(event.reason()), terminal));
  if (!event.before().empty() || !event.after().empty()) {
    const std::string change =
        absl::StrCat(Printable(event.before()), " -> ", Printable(event.after()));
    absl::StrAppend(&text, "\n", Beside("", 2, change, terminal));
  }
  return text + "\n";
}

}  // namespace

Output RunGetEvents(const GetEventsOptions& options, const Terminal& terminal) {
  const absl::StatusOr<std::string> job = ChooseJob(options.query, options.job);
  if (!job.ok()) return QueryFailure(job.status());
  v1::ListEventsRequest request;
  request.set_job(*job);
  request.set_limit(static_cast<uint32_t>(options.limit));
  request.set_after_sequence(static_cast<uint64_t>(options.after));
  v1::ListEventsResponse response;
  if (const absl::Status status = Ask(options.query, request, &response); !status.ok()) {
    return QueryFailure(status);
  }
  if (options.query.format == Format::kJson) {
    return {.exit_code = kOk, .out = EventsToJson(*job, response), .message = {}};
  }
  std::string text;
  for (const v1::JobEvent& event : response.events()) text += EventLine(event, terminal);
  return {.exit_code = kOk, .out = std::move(text), .message = {}};
}

void AddGetEvents(CLI::App& get, Command& command) {
  const auto options = std::make_shared<GetEventsOptions>();
  CLI::App& app = *get.add_subcommand("events", "The audit log of a job, newest first");
  AddJobOption(app, options->job);
  AddLimitOption(app, options->limit);
  app.add_option("--after", options->after, "Only events after this one")
      ->check(&CheckNotNegative)
      ->type_name("SEQUENCE");
  AddQueryOptions(app, options->query, {kNotFound});
  AddWatched(app, command,
             [options](const Terminal& terminal) { return RunGetEvents(*options, terminal); });
}

}  // namespace eplb::cli
