#include "client/cli/watch.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "client/cli/duration_flag.h"
#include "client/cli/text.h"
#include "placement/status_macros.h"

#include <CLI/CLI.hpp>

namespace eplb::cli {
namespace {

constexpr char kClear[] = "\x1b[H\x1b[2J";  // cursor home, clear the screen

constexpr absl::Duration kLeastInterval = absl::Milliseconds(100);  // a daemon has more to do

// --interval and --count.
std::vector<CLI::Option*> AddIntervalOptions(CLI::App& app, WatchOptions& options,
                                             const std::string& count_help) {
  CLI::Option* const interval =
      app.add_option("--interval", options.interval,
                     "Between two runs, at least 100ms [" + options.interval + "]")
          ->type_name("DURATION");
  CLI::Option* const count = app.add_option("--count", options.count, count_help)
                                 ->check(&CheckNotNegative)
                                 ->type_name("N");
  return {interval, count};
}

absl::StatusOr<absl::Duration> ParseInterval(const std::string& text) {
  EPLB_ASSIGN_OR_RETURN(const absl::Duration interval, ParseDuration("--interval", text));
  if (interval >= kLeastInterval) return interval;
  return absl::InvalidArgumentError(absl::StrCat("--interval is \"", text, "\", expected at least ",
                                                 absl::FormatDuration(kLeastInterval)));
}

}  // namespace

void AddWatched(CLI::App& app, Command& command, Command once) {
  const auto options = std::make_shared<WatchOptions>();
  CLI::Option* const watch = app.add_flag("--watch", options->watch, "Ask again and again");
  for (CLI::Option* const option :
       AddIntervalOptions(app, *options, "End after so many runs [0: never]")) {
    option->needs(watch);
  }
  app.callback([options, once = std::move(once), &command] { command = Watched(*options, once); });
}

void AddLive(CLI::App& app, Command& command, Command once) {
  const auto options = std::make_shared<WatchOptions>();
  const std::vector<CLI::Option*> flags = AddIntervalOptions(
      app, *options,
      "End after so many runs, 0: never [0; into a pipe 1, unless --interval is given]");
  app.callback([options, flags, once = std::move(once), &command] {
    options->watch =
        isatty(STDOUT_FILENO) == 1 ||
        std::any_of(flags.begin(), flags.end(), [](const auto* flag) { return flag->count() > 0; });
    command = Watched(*options, once);
  });
}

Command Watched(const WatchOptions& options, Command once) {
  if (!options.watch) return once;
  const auto runs = std::make_shared<int64_t>(0);
  return [options, once = std::move(once), runs](const Terminal& terminal) {
    const absl::StatusOr<absl::Duration> interval = ParseInterval(options.interval);
    if (!interval.ok()) return Failure(kUsage, interval.status());
    Output output = once(terminal);
    const bool first = ++*runs == 1;
    const bool last = *runs == options.count || (first && output.exit_code != kOk);
    if (!last) output.again = *interval;
    return output;
  };
}

int Print(const Output& output) {
  if (!output.message.empty()) {
    std::fprintf(stderr, "eplbctl: %s\n", Printable(output.message).c_str());
  }
  const size_t written = std::fwrite(output.out.data(), 1, output.out.size(), stdout);
  if (written == output.out.size() && std::fflush(stdout) == 0) return output.exit_code;
  std::perror("eplbctl: cannot write to stdout");
  return kError;
}

int RunAndPrint(const Command& command) {
  bool fresh = false;
  while (true) {
    Output output = command(DetectTerminal());
    fresh = fresh || output.again.has_value();
    if (fresh && isatty(STDOUT_FILENO) == 1) output.out.insert(0, kClear);
    const int exit_code = Print(output);
    if (!output.again || exit_code == kError) return exit_code;
    absl::SleepFor(*output.again);
  }
}

}  // namespace eplb::cli
