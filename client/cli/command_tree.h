// The commands of eplbctl and their flags as a tree, which the command line is matched with. Hides
// CLI11: its templates are compiled once, in command_tree.cc.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "client/cli/terminal.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace eplb::cli {

// Runs a command with the values of its flags.
using Command = std::function<Output(const Terminal& terminal)>;

// A command, or the program itself, whose flags are being declared. A handle: copies declare flags
// of the same command. Each member that declares a flag returns the handle; Required, Needs,
// Excludes and Check then apply to that flag.
class Flags {
 public:
  // Returns what is wrong with a value; empty if nothing is.
  using Validator = std::function<std::string(const std::string& text)>;
  // Stores a value. Returns false if the text is not of the flag's kind.
  using Store = std::function<bool(const std::string& text)>;

  explicit Flags(CLI::App& app, Command* chosen = nullptr) : app_(&app), chosen_(chosen) {}

  // Adds a command; `run` is the chosen command once the command line names it.
  Flags AddCommand(const std::string& name, const std::string& help, Command run) const;
  // Adds a command that only holds others.
  Flags AddGroup(const std::string& name, const std::string& help) const;
  // The command's `run`, which SetRun replaces; `run` is made when the command line is complete.
  const Command& run() const { return *run_; }
  void SetRun(std::function<Command()> make_run) const;
  // Calls `complete` once the command line was read.
  void OnComplete(std::function<void()> complete) const;

  // Declares a flag, "--gpus", an argument by its place, "in", or both, "job,--job". type: the
  // placeholder of its value in --help, such as FILE.
  Flags& Value(const char* name, const std::string& type, const Store& store,
               const std::string& help);
  Flags& Text(const char* name, const char* type, std::string& value, const std::string& help);
  // Any number of values, at least one. Each follows a flag of its own.
  Flags& Texts(const char* name, const char* type, std::vector<std::string>& values,
               const std::string& help);
  // One of `words`.
  Flags& Word(const char* name, const std::vector<std::string>& words, const Store& store,
              const std::string& help);
  Flags& Word(const char* name, const std::vector<std::string>& words, std::string& value,
              const std::string& help);
  // A flag without a value.
  Flags& Switch(const char* name, bool& value, const std::string& help);

  // Arguments by their places: one that does not pass the Check of a place goes to the next place.
  void SkipsUnfit() const;

  Flags& Required();
  Flags& Check(const Validator& validator);
  // The other flag must be given too, or must not be.
  Flags& Needs(const char* other);
  Flags& Excludes(const char* other);
  // Continues with a flag that was declared before.
  Flags& With(const char* name);
  Flags& Describe(const std::string& help);

  // The last value that the command line gives; empty without the flag.
  std::string Given(const char* name) const;
  // Given for a flag of the program itself, which precedes the command.
  std::string GivenToProgram(const char* name) const;

  // The text below the flags in --help: examples and exit codes.
  std::string footer() const;
  void SetFooter(const std::string& text) const;

 private:
  CLI::App* app_;
  Command* chosen_;
  std::shared_ptr<Command> run_ = std::make_shared<Command>();
  CLI::Option* option_ = nullptr;  // declared last
};

// Adds a command that calls `run` with its options, and with the terminal if it takes one.
// returns: its flags, and the options that they fill in.
template <class Options, class Run>
std::pair<Flags, Options&> AddCommand(const Flags& parent, const char* name,
                                      const std::string& help, Run run) {
  const auto options = std::make_shared<Options>();
  const Flags flags = parent.AddCommand(name, help, [options, run](const Terminal& terminal) {
    if constexpr (std::is_invocable_v<Run, const Options&, const Terminal&>) {
      return run(*options, terminal);
    } else {
      return run(*options);
    }
  });
  return {flags, *options};
}

// The program, its commands and what the command line chose.
class CommandTree {
 public:
  CommandTree(const std::string& name, const std::string& description);
  ~CommandTree();
  CommandTree(const CommandTree&) = delete;
  CommandTree& operator=(const CommandTree&) = delete;

  // Flags of the program itself, which precede the command.
  Flags root();
  void SetVersion(const std::string& text);

  // Returns the command that the command line names, or one that prints --help, --version or what
  // is wrong with the command line (exit 2).
  Command Parse(int argc, const char* const* argv);
  // The error of the first word that is not as declared; empty if all are.
  std::string ProblemWith(std::vector<std::string> words);

  // The words of each command that does something, such as "get placement", in the order of
  // declaration.
  std::vector<std::string> Commands() const;

  struct Next {
    std::vector<std::pair<std::string, std::string>> words;  // each with its help
    std::string type;        // placeholder of the value that is expected, such as FILE; empty: none
    bool takes_job = false;  // a job's name may follow
  };
  // Returns what may follow these words, without the program's name, in a command line.
  Next After(const std::vector<std::string>& words) const;

  // Returns the text of `--help` for a command, e.g. {"get", "placement"}; empty if there is none.
  std::string HelpOf(const std::vector<std::string>& words) const;

 private:
  std::unique_ptr<CLI::App> root_;
  Command chosen_;
};

}  // namespace eplb::cli
