#include "client/cli/command_tree.h"

#include <algorithm>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#include "base/command_line.h"
#include "base/errors.h"

#include <CLI/CLI.hpp>

namespace eplb::cli {
namespace {

// Returns the words of a type such as "a|b", and none if one of them is a placeholder, which is in
// upper case.
std::vector<std::string> ChoicesOf(const std::string& type) {
  const bool literal =
      type.find('|') != std::string::npos && std::ranges::none_of(type, [](unsigned char c) {
        return absl::ascii_isupper(c) || c == ':';
      });
  return literal ? absl::StrSplit(type, '|') : std::vector<std::string>();
}

std::vector<const CLI::App*> CommandsOf(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

// The command of `app` that is called `word`, or null.
const CLI::App* FindCommand(const CLI::App& app, const std::string& word) {
  const auto named =
      app.get_subcommands([&](const CLI::App* one) { return one->check_name(word); });
  return named.empty() ? nullptr : named.front();
}

std::string Joined(const std::string& before, const std::string& word) {
  return absl::StrCat(before, before.empty() ? "" : " ", word);
}

void AppendCommands(const CLI::App& app, const std::string& name, std::vector<std::string>& names) {
  const std::vector<const CLI::App*> commands = CommandsOf(app);
  if (commands.empty()) names.push_back(name);
  for (const CLI::App* one : commands) AppendCommands(*one, Joined(name, one->get_name()), names);
}

// Ends in a newline, which CLI11 leaves out after a footer.
Output Page(std::string text) {
  if (!absl::EndsWith(text, "\n")) text += '\n';
  return text;
}

Output WrongUsage(const CLI::App& root, const std::string& what) {
  std::string command = root.get_name();
  for (const CLI::App* app = &root; app != &InnermostCommand(root);) {
    app = app->get_subcommands().front();
    command = Joined(command, app->get_name());
  }
  return InvalidInput(what, " (see ", command, " --help)");
}

Flags::Store StoreIn(std::string& value) {
  return [&value](const std::string& text) {
    value = text;
    return true;
  };
}

}  // namespace

Flags Flags::AddCommand(const std::string& name, const std::string& help, Command run) const {
  Flags flags(*app_->add_subcommand(name, help), chosen_);
  *flags.run_ = std::move(run);
  flags.SetRun([kept = flags.run_] { return *kept; });
  return flags;
}

Flags Flags::AddGroup(const std::string& name, const std::string& help) const {
  Flags flags(*app_->add_subcommand(name, help), chosen_);
  flags.app_->require_subcommand(1);
  return flags;
}

void Flags::SetRun(std::function<Command()> make_run) const {
  app_->callback([make_run = std::move(make_run), chosen = chosen_] { *chosen = make_run(); });
}

void Flags::OnComplete(std::function<void()> complete) const {
  app_->parse_complete_callback(std::move(complete));
}

Flags& Flags::Value(const char* name, const std::string& type, const Store& store,
                    const std::string& help) {
  const CLI::callback_t read = [store](const CLI::results_t& results) {
    return store(results.back());
  };
  option_ = app_->add_option(name, read, help)->type_name(type);
  return *this;
}

Flags& Flags::Text(const char* name, const char* type, std::string& value,
                   const std::string& help) {
  return Value(name, type, StoreIn(value), help);
}

Flags& Flags::Texts(const char* name, const char* type, std::vector<std::string>& values,
                    const std::string& help) {
  option_ = app_->add_option(name, values, help)->type_name(type);
  if (!option_->get_lnames().empty()) option_->allow_extra_args(false);
  return *this;
}

Flags& Flags::Word(const char* name, const std::vector<std::string>& words, const Store& store,
                   const std::string& help) {
  Value(name, absl::StrJoin(words, "|"), store, help);
  option_->check(CLI::IsMember(words).description(""));
  return *this;
}

Flags& Flags::Word(const char* name, const std::vector<std::string>& words, std::string& value,
                   const std::string& help) {
  return Word(name, words, StoreIn(value), help);
}

Flags& Flags::Switch(const char* name, bool& value, const std::string& help) {
  option_ = app_->add_flag(name, value, help);
  return *this;
}

void Flags::SkipsUnfit() const { app_->validate_positionals(); }

Flags& Flags::Required() {
  option_->required();
  return *this;
}

Flags& Flags::Check(const Validator& validator) {
  option_->check(validator);
  return *this;
}

Flags& Flags::Needs(const char* other) {
  option_->needs(app_->get_option(other));
  return *this;
}

Flags& Flags::Excludes(const char* other) {
  option_->excludes(app_->get_option(other));
  return *this;
}

Flags& Flags::With(const char* name) {
  option_ = app_->get_option(name);
  return *this;
}

Flags& Flags::Describe(const std::string& help) {
  option_->description(help);
  return *this;
}

std::string Flags::Given(const char* name) const {
  const CLI::Option* const option = app_->get_option_no_throw(name);
  return option == nullptr || option->results().empty() ? "" : option->results().back();
}

std::string Flags::GivenToProgram(const char* name) const {
  CLI::App* root = app_;
  while (root->get_parent() != nullptr) root = root->get_parent();
  return Flags(*root).Given(name);
}

std::string Flags::footer() const { return app_->get_footer(); }

void Flags::SetFooter(const std::string& text) const { app_->footer(text); }

CommandTree::CommandTree(const std::string& name, const std::string& description)
    : root_(std::make_unique<CLI::App>(description, name)) {
  root_->require_subcommand(1);
  WrapHelp(*root_);
}

CommandTree::~CommandTree() = default;

Flags CommandTree::root() { return Flags(*root_, &chosen_); }

void CommandTree::SetVersion(const std::string& text) {
  root_->set_version_flag("--version", text);
}

Command CommandTree::Parse(int argc, const char* const* argv) {
  Output output;
  try {
    root_->parse(argc, argv);
    const std::string flag = FlagWithoutValue(*root_);
    if (flag.empty()) return chosen_;
    output = WrongUsage(*root_, flag + " has an empty value");
  } catch (const CLI::ParseError& error) {
    std::ostringstream text;
    output = error.get_exit_code() == 0 ? ((void)root_->exit(error, text, text), Page(text.str()))
                                        : WrongUsage(*root_, ExplainParseError(*root_, error));
  }
  return [output](const Terminal& /*terminal*/) { return output; };
}

std::string CommandTree::ProblemWith(std::vector<std::string> words) {
  try {
    root_->parse(std::move(words));
  } catch (const CLI::ParseError& error) {
    return error.what();
  }
  return "";
}

std::vector<std::string> CommandTree::Commands() const {
  std::vector<std::string> names;
  AppendCommands(*root_, "", names);
  return names;
}

CommandTree::Next CommandTree::After(const std::vector<std::string>& words) const {
  const CLI::App* command = root_.get();
  const CLI::Option* flag = nullptr;  // the flag that the next word is a value of
  for (const std::string& word : words) {
    if (std::exchange(flag, nullptr) != nullptr) continue;
    if (word.starts_with('-')) {
      flag = command->get_option_no_throw(word);
      if (flag != nullptr && flag->get_expected_max() == 0) flag = nullptr;
    } else if (const CLI::App* const named = FindCommand(*command, word); named != nullptr) {
      command = named;
    }
  }
  Next next;
  const auto expect = [&next](const CLI::Option& option) {
    next.type = option.get_type_name();
    for (const std::string& choice : ChoicesOf(next.type)) next.words.emplace_back(choice, "");
  };
  if (flag != nullptr) {
    expect(*flag);
    return next;
  }
  for (const CLI::App* one : CommandsOf(*command)) {
    next.words.emplace_back(one->get_name(), one->get_description());
  }
  for (const CLI::Option* option : command->get_options()) {
    const std::string& help = option->get_description();
    for (const std::string& name : option->get_snames()) next.words.emplace_back("-" + name, help);
    for (const std::string& name : option->get_lnames()) next.words.emplace_back("--" + name, help);
    if (!option->get_positional()) continue;
    if (option->check_lname("job")) {
      next.takes_job = true;
    } else {
      expect(*option);
    }
  }
  return next;
}

std::string CommandTree::HelpOf(const std::vector<std::string>& words) const {
  const CLI::App* command = root_.get();
  std::string before;  // the words in front of the command's own
  for (const std::string& word : words) {
    before = Joined(before, command->get_name());
    command = FindCommand(*command, word);
    if (command == nullptr) return "";
  }
  return Page(command->get_formatter()->make_help(command, Joined(before, command->get_name()),
                                                  CLI::AppFormatMode::Normal))
      .out;
}

}  // namespace eplb::cli
