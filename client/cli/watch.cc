#include "client/cli/watch.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <limits>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "client/cli/flags.h"
#include "client/cli/screen.h"
#include "client/cli/text.h"

namespace eplb::cli {
namespace {

constexpr absl::Duration kLeastInterval = absl::Milliseconds(100);  // a daemon has more to do

// --interval and --count. live: needs no --watch.
void AddRepeated(Flags& flags, const std::shared_ptr<WatchOptions>& options, bool live) {
  flags.Text("--interval", "DURATION", options->interval,
             "Time between two runs, at least 100ms [" + options->interval + "]");
  if (!live) flags.Needs("--watch");
  AddCount(flags, "--count", "N", options->count,
           absl::StrCat("Stop after this many runs; 0 repeats until interrupted [0",
                        live ? "; into a pipe 1, unless --interval is given]" : "]"));
  if (!live) flags.Needs("--watch");
  flags.SetRun([options, flags, live] {
    options->lines = flags.Given("--output") == "json";
    options->watch = options->watch ||
                     (live && (isatty(STDOUT_FILENO) == 1 || !flags.Given("--interval").empty() ||
                               !flags.Given("--count").empty()));
    return Watched(*options, flags.run());
  });
}

absl::StatusOr<absl::Duration> ParseInterval(const std::string& text) {
  EPLB_ASSIGN_OR_RETURN(const absl::Duration interval, ParseDuration("--interval", text));
  if (interval >= kLeastInterval) return interval;
  return InvalidInput("--interval is \"", text, "\", expected at least ",
                      absl::FormatDuration(kLeastInterval));
}

// One run of a command on a thread of its own, so that keys work while a daemon does not answer.
class Run {
 public:
  explicit Run(const Command& command) : answer_(std::make_shared<Answer>()) {
    std::thread([command, answer = answer_] {
      Output output;
      try {
        output = command(DetectTerminal());
      } catch (const std::exception& error) {  // thrown by a library, e.g. out of memory
        output = {kError, "", error.what()};
      }
      const absl::MutexLock lock(&answer->mutex);
      answer->output = std::move(output);
    }).detach();
  }

  // Absent while the command runs.
  std::optional<Output> Take() {
    const absl::MutexLock lock(&answer_->mutex);
    return std::exchange(answer_->output, std::nullopt);
  }

 private:
  struct Answer {
    absl::Mutex mutex;
    std::optional<Output> output ABSL_GUARDED_BY(mutex);
  };
  std::shared_ptr<Answer> answer_;
};

// The newest frame of the screen, and why there is no newer one.
struct ShownScreen {
  Output good;
  absl::Time since;  // time of `good`
  std::string problem;
  bool failed = false;

  std::string Problem() const {
    if (!failed) return problem;
    const double age = absl::ToDoubleSeconds(absl::Now() - since);
    return absl::StrCat(problem, "; the last answer is ",
                        age < 1 ? "less than 1 s" : Seconds(std::floor(age)), " old");
  }
};

// Leaves the last frame on the terminal. The end of the process ends a run that is in progress.
int EndScreen(Screen& screen, const ShownScreen& shown, bool running, int exit_code) {
  screen.Leave();
  const int printed = Print({exit_code, shown.good.out, shown.problem});
  if (running) std::_Exit(printed);
  return printed;
}

// Returns the first shown line after a key that scrolls; FitFrame bounds it.
int Scrolled(int first, Screen::Event event, int height) {
  const int page = std::max(height - 2, 1);
  switch (event) {
    case Screen::Event::kUp:
      return first - 1;
    case Screen::Event::kDown:
      return first + 1;
    case Screen::Event::kPageUp:
      return first - page;
    case Screen::Event::kPageDown:
      return first + page;
    case Screen::Event::kBottom:
      return std::numeric_limits<int>::max();
    default:
      return 0;
  }
}

// Draws one frame over the other until a key, a signal or the command ends it.
int RunOnScreen(const Command& command, Output first) {
  constexpr absl::Duration kLook = absl::Milliseconds(20);  // between looks for the answer of a run
  constexpr absl::Duration kTick = absl::Seconds(1);        // ages are shown in seconds
  absl::Time due = absl::Now() + *first.again;
  ShownScreen shown{.good = std::move(first), .since = absl::Now()};
  Screen screen;
  std::optional<Run> run;
  std::string drawn;
  int first_line = 0;
  while (true) {
    if (std::optional<Output> output = run ? run->Take() : std::nullopt) {
      run.reset();
      due = absl::Now() + output->again.value_or(absl::ZeroDuration());
      shown.problem = output->message;
      const bool last = !output->again.has_value();
      const int exit_code = output->exit_code;
      shown.failed = exit_code != kOk;
      if (exit_code == kOk || !output->out.empty()) {
        shown.good = *std::move(output);
        shown.since = absl::Now();
      }
      if (last) return EndScreen(screen, shown, false, exit_code);
    }
    if (!run && absl::Now() >= due) run.emplace(command);
    std::string frame = FitFrame(shown.good.out, shown.Problem(), screen.window(), first_line);
    if (frame != drawn && !screen.Draw(frame)) return kError;
    drawn = std::move(frame);
    const Screen::Event event = screen.Wait(run ? kLook : std::min(due - absl::Now(), kTick));
    switch (event) {
      case Screen::Event::kNothing:
        break;
      case Screen::Event::kSort:
        if (shown.good.sort) shown.good.sort();
        due = absl::Now();
        break;
      case Screen::Event::kQuit:
        return EndScreen(screen, shown, run.has_value(), kOk);
      case Screen::Event::kEnded:
        screen.RaiseEnd();
      case Screen::Event::kChanged:
        drawn.clear();
        due = absl::Now();  // the text depends on the width
        break;
      default:
        first_line = Scrolled(first_line, event, screen.window().height);
    }
  }
}

}  // namespace

void AddWatched(Flags& flags) {
  const auto options = std::make_shared<WatchOptions>();
  flags.Switch("--watch", options->watch, "Repeat the command");
  AddRepeated(flags, options, /*live=*/false);
}

void AddLive(Flags& flags) { AddRepeated(flags, std::make_shared<WatchOptions>(), /*live=*/true); }

Command Watched(const WatchOptions& options, Command once) {
  if (!options.watch) return once;
  const auto runs = std::make_shared<int64_t>(0);
  return [options, once = std::move(once), runs](const Terminal& terminal) {
    const absl::StatusOr<absl::Duration> interval = ParseInterval(options.interval);
    if (!interval.ok()) return Output(interval.status());
    Output output = once(terminal);
    const bool first = ++*runs == 1;
    const bool last = *runs == options.count || (first && output.exit_code != kOk);
    if (!last) output.again = *interval;
    output.lines = options.lines;
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
  Output output = command(DetectTerminal());
  if (output.again && !output.lines && isatty(STDOUT_FILENO) == 1) {
    return RunOnScreen(command, std::move(output));
  }
  while (true) {
    const int exit_code = Print(output);
    if (!output.again || exit_code == kError) return exit_code;
    absl::SleepFor(*output.again);
    output = command(DetectTerminal());
  }
}

}  // namespace eplb::cli
