// --watch: a command that is run again and again, its output on a fresh screen.
#ifndef EPLB_CLIENT_CLI_WATCH_H_
#define EPLB_CLIENT_CLI_WATCH_H_

#include <cstdint>
#include <string>

#include "client/cli/flags.h"

namespace eplb::cli {

struct WatchOptions {
  bool watch = false;
  std::string interval = "2s";  // between two runs, at least 100ms
  int64_t count = 0;            // of runs; 0: until interrupted
  bool lines = false;           // as Output::lines
};

// Gives the command --watch, and with it --interval and --count; `command` becomes `once`, watched
// as they say.
void AddWatched(CLI::App& app, Command& command, Command once);
// Likewise a command that watches unless it writes into a pipe: --interval and --count. Into a pipe
// it runs once, unless one of them is given.
void AddLive(CLI::App& app, Command& command, Command once);

// `once` as it is without options.watch. Else wrong usage for an interval that cannot be meant, or
// what it gives asks to be run again: after a first run that failed no more, later a failure is
// shown and the next run may succeed.
Command Watched(const WatchOptions& options, Command once);

// Runs `command` and prints what it gives, as often as it asks for; the exit code. On a terminal
// several runs are frames of one screen: q or Ctrl-C ends them and gives the terminal back, with
// the last frame on it; a run that fails leaves the frame before it and says above it why and how
// old that is.
int RunAndPrint(const Command& command);

// Writes to stdout and stderr; the exit code, kError when stdout cannot be written.
int Print(const Output& output);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_WATCH_H_
