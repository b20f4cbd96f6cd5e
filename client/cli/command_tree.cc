#include "client/cli/command_tree.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"

#include <CLI/CLI.hpp>

namespace eplb::cli {
namespace {

// Words that are meant as they stand: lower case, none with a placeholder in it.
std::vector<std::string> ChoicesOf(const std::string& type) {
  const bool literal = type.find('|') != std::string::npos &&
                       std::none_of(type.begin(), type.end(), [](unsigned char c) {
                         return absl::ascii_isupper(c) || c == ':';
                       });
  return literal ? absl::StrSplit(type, '|') : std::vector<std::string>();
}

FlagEntry EntryOf(const CLI::Option& option) {
  FlagEntry entry;
  for (const std::string& name : option.get_snames()) entry.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) entry.names.push_back("--" + name);
  if (option.get_expected_max() > 0) entry.type = option.get_type_name();
  if (entry.names.empty()) entry.place = std::exchange(entry.type, "");
  entry.choices = ChoicesOf(entry.place.empty() ? entry.type : entry.place);
  entry.help = option.get_description();
  entry.required = option.get_required();
  return entry;
}

void Append(const CLI::App& app, const std::string& name, std::vector<CommandEntry>& entries) {
  CommandEntry entry{.name = name, .help = app.get_description(), .footer = app.get_footer()};
  for (const CLI::Option* option : app.get_options()) entry.flags.push_back(EntryOf(*option));
  const auto all = app.get_subcommands([](const CLI::App*) { return true; });
  for (const CLI::App* command : all) entry.subcommands.push_back(command->get_name());
  entries.push_back(std::move(entry));
  for (const CLI::App* command : all) {
    Append(*command, name.empty() ? command->get_name() : name + " " + command->get_name(),
           entries);
  }
}

}  // namespace

std::vector<CommandEntry> ListCommands(const CLI::App& root) {
  std::vector<CommandEntry> entries;
  Append(root, "", entries);
  return entries;
}

}  // namespace eplb::cli
