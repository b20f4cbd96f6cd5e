// Flags of eplbd: its own, and those of the configuration's keys.
#include "server/options.h"

#include <sstream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/command_line.h"
#include "base/foreign_text.h"
#include "server/config/config_help.h"
#include "server/config/config_keys.h"

#include "eplb/v1/options.pb.h"
#include <CLI/CLI.hpp>

namespace eplb {
namespace {

constexpr int kBadOptions = 2;

std::vector<const ConfigKey*> KeysWithFlag() {
  std::vector<const ConfigKey*> found;
  for (const ConfigKey& key : ConfigKeys()) {
    if (!key.option->flag().empty()) found.push_back(&key);
  }
  return found;
}

// Returns every flag with its help, as --help shows them.
std::vector<std::pair<std::string, std::string>> FlagsOf(const CLI::App& app) {
  std::vector<std::pair<std::string, std::string>> flags;
  for (const CLI::Option* option : app.get_options()) {
    flags.emplace_back(option->get_name(false, true), option->get_description());
  }
  return flags;
}

ParsedOptions Unusable(const std::string& why) {
  return {
      .options = {}, .exit_code = kBadOptions, .stderr_text = absl::StrCat("eplbd: ", why, "\n")};
}

}  // namespace

ParsedOptions ParseOptions(int argc, const char* const* argv, const std::string& version) {
  CLI::App app("Expert-parallel load balancer: the daemon.", "eplbd");
  WrapHelp(app);
  Options options;
  std::vector<std::string> settings;
  const std::vector<const ConfigKey*> flags = KeysWithFlag();
  std::vector<std::string> values(flags.size());
  app.set_version_flag("--version", version);
  app.add_option("--config", options.sources.file, "TOML file; EPLB_* and flags override it");
  for (size_t i = 0; i < flags.size(); ++i) {
    app.add_option(flags[i]->option->flag(), values[i], flags[i]->option->flag_help());
  }
  app.add_option("--set", settings, "any key of the configuration, KEY=VALUE; may be repeated")
      ->allow_extra_args(false);
  app.add_flag("--check-config", options.check_config, "check the configuration and exit: 0 or 2");
  app.add_flag("--print-config", options.print_config,
               "print the current configuration as TOML, with the source of each value");
  app.add_flag("--insecure-network", options.insecure_network,
               "listen on addresses that other machines reach, without encryption");
  bool help_config = false;
  bool manual = false;
  app.add_flag("--help-config", help_config, "print the keys of the configuration");
  app.add_flag("--man", manual, "print the manual page: eplbd --man | man -l -");
  app.footer("`eplbd --help-config` shows the keys of the configuration and their variables.\n");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {  // the library throws this for --help as well
    std::ostringstream out;
    std::ostringstream err;
    const int code = app.exit(error, out, err);
    if (code == 0) return {.options = {}, .stdout_text = out.str()};
    return Unusable(ExplainParseError(app, error));
  }
  if (help_config) return {.options = {}, .stdout_text = ConfigHelp()};
  if (manual) return {.options = {}, .stdout_text = ManualPage(version, FlagsOf(app))};
  if (app.count("--config") > 0 && options.sources.file.empty()) {
    return Unusable("--config has an empty value");
  }
  for (size_t i = 0; i < flags.size(); ++i) {
    if (app.count(flags[i]->option->flag()) > 0) {
      options.sources.flags.emplace_back(flags[i]->FullName(), values[i]);
    }
  }
  for (const std::string& setting : settings) {
    const size_t equals = setting.find('=');
    if (equals == std::string::npos) {
      return Unusable(absl::StrCat("--set ", Printable(setting), ": expected KEY=VALUE"));
    }
    options.sources.flags.emplace_back(setting.substr(0, equals), setting.substr(equals + 1));
  }
  return {.options = std::move(options)};
}

}  // namespace eplb
