// What is wrong with a command line that CLI11 refused, in one line and in words of a user.
// threads: safe, no state.
#ifndef EPLB_BASE_COMMAND_LINE_H_
#define EPLB_BASE_COMMAND_LINE_H_

#include <string>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace eplb {

// The innermost subcommand that was named, or the program itself.
const CLI::App& InnermostCommand(const CLI::App& root);

// "unknown flag --gpsu, did you mean --gpus?", "--gpus is given 2 times, expected once", "--gpus is
// "1.5", expected an integer", "argument DIR is missing", ..; a message of CLI11 that is none of
// these stays as it is. The text is Printable.
std::string ExplainParseError(const CLI::App& root, const CLI::ParseError& error);

// A flag of the commands that were named whose value is empty, as of a shell variable that is not
// set; no flag takes that. Empty: none.
std::string FlagWithoutValue(const CLI::App& app);

}  // namespace eplb

#endif  // EPLB_BASE_COMMAND_LINE_H_
