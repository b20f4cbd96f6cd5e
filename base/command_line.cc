// Rules from CLI11's errors to messages.
#include "base/command_line.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <regex>
#include <sstream>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#include "base/foreign_text.h"
#include "base/suggestion.h"

#include <CLI/CLI.hpp>

namespace eplb {

const CLI::App& InnermostCommand(const CLI::App& root) {
  const std::vector<CLI::App*> named = root.get_subcommands();
  return named.empty() ? root : InnermostCommand(*named.front());
}

namespace {

constexpr size_t kHelpWidth = 80;

std::string UnknownFlag(const CLI::App& command, const std::string& word) {
  const std::string flag = word.substr(0, word.find('='));
  std::vector<std::string> known;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  }
  if (std::ranges::find(known, flag) != known.end()) {
    return absl::StrCat(flag, " stands in front of \"", command.get_name(),
                        "\", expected behind it");
  }
  return "unknown flag " + flag + Suggestion(flag, known);
}

std::string UnknownCommand(const CLI::App& parent, const std::string& word) {
  std::vector<std::string> known;
  for (const CLI::App* command : parent.get_subcommands([](const CLI::App*) { return true; })) {
    known.push_back(command->get_name());
  }
  return "unknown command \"" + word + "\"" + Suggestion(word, known);
}

// Describes the values that a flag of a number takes, for a value that it does not take.
std::string NumberExpected(const std::string& value) {
  static const std::regex integer("[+-]?[0-9]+");
  double number = 0;
  if (std::regex_match(value, integer)) {
    return value.front() == '-' ? "the number is too low" : "the number is too large";
  }
  const bool is_number = absl::SimpleAtod(value, &number) && std::isfinite(number);
  return is_number ? "expected an integer" : "expected a number";
}

// Returns the name in the help of the argument without a flag that CLI11 calls `name`; empty if
// there is none.
std::string PositionalName(const CLI::App& command, const std::string& name) {
  for (const CLI::Option* option : command.get_options()) {
    const bool by_place = option->get_positional() && option->get_lnames().empty();
    if (by_place && option->get_name() == name) return option->get_type_name();
  }
  return {};
}

// Rewrites messages of CLI11 about one flag or argument; returns others unchanged.
std::string InWordsOfAUser(const CLI::App& command, const std::string& message) {
  static const std::regex conversion("Could not convert: (\\S+) = (.*)");
  static const std::regex twice("(\\S+): At Most ([0-9]+) required but received ([0-9]+)");
  static const std::regex no_value("(\\S+): 1 required (.*) missing");
  // "1 to 8" or, since CLI11 2.3, "[1 - 8]".
  static const std::regex range(
      "(\\S+): Value (.*) not in range \\[?(\\S+) (?:to|-) ([^\\]\\s]+)\\]?");
  static const std::regex member("(\\S+): (.*) not in \\{(.*)\\}");
  static const std::regex required("(\\S+) is required");
  std::smatch parts;
  const auto is = [&message, &parts](const std::regex& shape) {
    return std::regex_match(message, parts, shape);
  };
  const auto value = [&parts] {
    return absl::StrCat(parts[1].str(), " is \"", parts[2].str(), "\"");
  };
  if (is(conversion)) return absl::StrCat(value(), ", ", NumberExpected(parts[2].str()));
  if (is(twice)) {
    return absl::StrCat(parts[1].str(), " is given ", parts[3].str(), " times, expected ",
                        parts[2].str() == "1" ? "once" : "at most " + parts[2].str());
  }
  if (is(no_value)) return absl::StrCat(parts[1].str(), " has no value");
  if (is(range)) return absl::StrCat(value(), ", expected ", parts[3].str(), "..", parts[4].str());
  if (is(member)) {
    const std::vector<std::string> known = absl::StrSplit(parts[3].str(), ',');
    return absl::StrCat(value(), ", expected one of ", absl::StrJoin(known, ", "),
                        Suggestion(parts[2].str(), known));
  }
  if (!is(required)) return message;
  const std::string positional = PositionalName(command, parts[1].str());
  return positional.empty() ? message : absl::StrCat("argument ", positional, " is missing");
}

std::string WrapWords(const std::string& text, size_t width) {
  std::string wrapped;
  size_t column = 0;
  for (const absl::string_view word : absl::StrSplit(text, ' ')) {
    const bool fits = column == 0 || column + 1 + word.size() <= width;
    absl::StrAppend(&wrapped, column == 0 ? "" : fits ? " " : "\n", word);
    column = fits && column > 0 ? column + 1 + word.size() : word.size();
  }
  return wrapped;
}

// Breaks descriptions, which CLI11 prints beside a column of names or at the top.
class WrappedHelp : public CLI::Formatter {
 public:
  std::string make_option_desc(const CLI::Option* option) const override {
    return WrapWords(option->get_description(), kHelpWidth - column_width_);
  }
  std::string make_subcommand(const CLI::App* command) const override {
    std::ostringstream out;
    const std::string help = WrapWords(command->get_description(), kHelpWidth - column_width_);
    CLI::detail::format_help(out, command->get_name(), help, column_width_);
    return out.str();
  }
  std::string make_description(const CLI::App* app) const override {
    return WrapWords(CLI::Formatter::make_description(app), kHelpWidth);
  }
};

// Finds the cause itself, because CLI11 reports an unknown command as missing, and required flags
// before unknown ones.
std::string Explain(const CLI::App& root, const CLI::ParseError& error) {
  const std::vector<std::string> rest = root.remaining(true);
  const CLI::App& command = InnermostCommand(root);
  for (const std::string& word : rest) {
    if (word.rfind("--", 0) == 0) return UnknownFlag(command, word);
  }
  const std::string message = error.what();
  if (dynamic_cast<const CLI::ConversionError*>(&error) != nullptr || rest.empty()) {
    return InWordsOfAUser(command, message);
  }
  const bool about_commands = message.find("subcommand is required") != std::string::npos;
  if (about_commands) return UnknownCommand(command, rest.front());
  const bool about_rest = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr;
  return about_rest ? "unexpected argument \"" + rest.front() + "\""
                    : InWordsOfAUser(command, message);
}

}  // namespace

std::string ExplainParseError(const CLI::App& root, const CLI::ParseError& error) {
  return Printable(Explain(root, error));  // the text quotes arguments
}

void WrapHelp(CLI::App& app) { app.formatter(std::make_shared<WrappedHelp>()); }

std::string FlagWithoutValue(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    const std::vector<std::string>& values = option->results();
    if (std::ranges::find(values, "") != values.end()) return option->get_name();
  }
  for (const CLI::App* named : app.get_subcommands()) {
    std::string flag = FlagWithoutValue(*named);
    if (!flag.empty()) return flag;
  }
  return {};
}

}  // namespace eplb
