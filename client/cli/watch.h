// --watch: runs a command again and again and shows each output on a fresh screen.
#pragma once

#include <cstdint>
#include <string>

#include "client/cli/command_tree.h"

namespace eplb::cli {

struct WatchOptions {
  bool watch = false;
  std::string interval = "2s";  // between two runs, at least 100ms
  int64_t count = 0;            // number of runs; 0: until interrupted
  bool lines = false;           // see Output::lines
};

// Gives the command --watch, --interval and --count.
void AddWatched(Flags& flags);
// Gives --interval and --count to a command that watches unless stdout is a pipe. Into a pipe it
// runs once, unless one of the two flags is given.
void AddLive(Flags& flags);

// Returns `once` without options.watch. Otherwise each output asks to be run again, up to
// options.count runs; the first run must succeed, and later failures are shown. An interval that is
// no duration is wrong usage.
Command Watched(const WatchOptions& options, Command once);

// Runs `command` and prints its output, as often as the output asks for. returns: the exit code. On
// a terminal, several runs are frames of one screen: q or Ctrl-C ends them and leaves the last
// frame on the terminal; arrows and pages scroll, s sorts. A run that fails keeps the frame before
// it, with the error and the frame's age above it.
int RunAndPrint(const Command& command);

// Writes to stdout and stderr. returns: the exit code, kError if stdout cannot be written.
int Print(const Output& output);

}  // namespace eplb::cli
