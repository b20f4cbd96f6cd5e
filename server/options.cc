#include "server/options.h"

#include <algorithm>
#include <sstream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "placement/suggestion.h"
#include "server/config_help.h"
#include "server/config_names.h"

#include <CLI/CLI.hpp>

namespace eplb {
namespace {

constexpr int kBadOptions = 2;

// Every flag with its help, as --help shows them.
std::vector<std::pair<std::string, std::string>> FlagsOf(const CLI::App& app) {
  std::vector<std::pair<std::string, std::string>> flags;
  for (const CLI::Option* option : app.get_options()) {
    flags.emplace_back(option->get_name(false, true), option->get_description());
  }
  return flags;
}

// The library names all arguments that it could not take, in another order; the first is enough.
std::string WhatIsWrong(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<std::string> extras = app.remaining();
  if (extras.empty()) return error.what();
  const auto flag = std::find_if(extras.begin(), extras.end(),
                                 [](const std::string& extra) { return extra.rfind('-', 0) == 0; });
  if (flag == extras.end()) {
    return absl::StrCat("\"", OnOneLine(extras.front()), "\": not expected, there are flags only");
  }
  const std::string name = flag->substr(0, flag->find('='));
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& one : option->get_lnames()) known.push_back("--" + one);
  }
  return absl::StrCat(OnOneLine(name), ": unknown flag", Suggestion(name, known));
}

}  // namespace

ParsedOptions ParseOptions(int argc, const char* const* argv, const std::string& version) {
  CLI::App app("Expert-parallel load balancer: the daemon.", "eplbd");
  Options options;
  std::vector<std::string> settings;
  const std::pair<const char*, const char*> flags[] = {{"--listen", "listen.grpc"},
                                                       {"--http", "listen.http"},
                                                       {"--store", "store.path"},
                                                       {"--log-level", "log.level"}};
  const char* const help[] = {"gRPC address, ADDR:PORT or unix:PATH (127.0.0.1:29610)",
                              "HTTP address, ADDR:PORT (127.0.0.1:29611)",
                              "database file, or \"memory\" to keep nothing",
                              "debug, info, warn or error"};
  std::string values[std::size(flags)];
  app.set_version_flag("--version", version);
  app.add_option("--config", options.sources.file, "TOML file; EPLB_* and flags override it");
  for (size_t i = 0; i < std::size(flags); ++i) app.add_option(flags[i].first, values[i], help[i]);
  app.add_option("--set", settings, "any key of the configuration, KEY=VALUE; may be repeated")
      ->allow_extra_args(false);
  app.add_flag("--check-config", options.check_config, "check the configuration and exit: 0 or 2");
  app.add_flag("--print-config", options.print_config,
               "print the configuration in force as TOML, with the source of each value");
  app.add_flag("--insecure-network", options.insecure_network,
               "listen on addresses that other machines reach, without encryption");
  bool help_config = false;
  bool manual = false;
  app.add_flag("--help-config", help_config, "print the keys of the configuration");
  app.add_flag("--man", manual, "print the manual page: eplbd --man | man -l -");
  app.footer("`eplbd --help-config` tells the keys of the configuration and their variables.\n");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {  // the library's way to say --help, too
    std::ostringstream out;
    std::ostringstream err;
    const int code = app.exit(error, out, err);
    if (code == 0) return {.options = {}, .exit_code = 0, .stdout_text = out.str()};
    return {.options = {},
            .exit_code = kBadOptions,
            .stderr_text = absl::StrCat("eplbd: ", WhatIsWrong(app, error), "\n")};
  }
  if (help_config) return {.options = {}, .stdout_text = ConfigHelp()};
  if (manual) return {.options = {}, .stdout_text = ManualPage(version, FlagsOf(app))};
  if (app.count("--config") > 0 && options.sources.file.empty()) {
    return {.options = {},
            .exit_code = kBadOptions,
            .stderr_text = "eplbd: --config has an empty value\n"};
  }
  for (size_t i = 0; i < std::size(flags); ++i) {
    if (app.count(flags[i].first) > 0) {
      options.sources.flags.emplace_back(flags[i].second, values[i]);
    }
  }
  for (const std::string& setting : settings) {
    const size_t equals = setting.find('=');
    if (equals == std::string::npos) {
      return {.options = {},
              .exit_code = kBadOptions,
              .stderr_text = "eplbd: --set " + setting + ": expected KEY=VALUE\n"};
    }
    options.sources.flags.emplace_back(setting.substr(0, equals), setting.substr(equals + 1));
  }
  return {.options = std::move(options)};
}

}  // namespace eplb
