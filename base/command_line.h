// Explains in one line why CLI11 rejected a command line.
#pragma once

#include <string>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace eplb {

// Returns the innermost subcommand that was named, or the program itself.
const CLI::App& InnermostCommand(const CLI::App& root);

// Returns "unknown flag --gpsu, did you mean --gpus?", "--gpus is given 2 times, expected once",
// "--gpus is "1.5", expected an integer", "argument DIR is missing", ..; other messages of CLI11
// stay unchanged. The text is Printable.
std::string ExplainParseError(const CLI::App& root, const CLI::ParseError& error);

// Keeps lines of --help within 80 columns, also those of commands that are added afterwards.
void WrapHelp(CLI::App& app);

// Returns a flag of the named commands whose value is empty, e.g. because a shell variable is not
// set, which no flag accepts. Empty: none.
std::string FlagWithoutValue(const CLI::App& app);

}  // namespace eplb
