#include "client/cli/help.h"

#include <iterator>
#include <memory>

#include "absl/strings/str_cat.h"

#include <CLI/CLI.hpp>

namespace eplb::cli {
namespace {

// The same words and numbers as docs/costs.md.
constexpr char kCosts[] =
    R"(How costs decide whether a new placement is applied

With cost.token_ns (eplbd) or --expert-bytes (eplbctl replay) a decision counts
seconds. Without them only min_gain decides.

  peak GPU load    per layer the tokens of its fullest GPU; summed over layers
  migration        bytes of the busiest link / its bandwidth + cost.stall
  replicas         training only: weights and gradients that replicas on other
                   GPUs send each step, beyond those of the placement in force
  trial            a placement that was computed and not applied, compared with
                   the placement in force on the windows that came later
  confirmed saving what the best trial saved on those windows: the mean less one
                   standard error, never more than is predicted now, for as many
                   steps as it was watched, at most horizon_steps
  net saving       confirmed saving - replicas
  bad interval     loss until the next decision in windows that are two standard
                   deviations below the trial's mean; 0 when even those save
  at stake         migration there and back + a bad interval
  loss budget      0.3 % of the time without any move + saved - spent so far

A new placement is applied when all of this holds:
  1. the peak GPU load is predicted to fall by at least min_gain;
  2. the net saving is more than the migration;
  3. what is at stake is no more than the loss budget, or no more than a fifth
     of the net saving.

Example. The confirmed saving is 530 ms over 350 steps, the migration takes
20 ms, a bad interval 6.2 ms, the loss budget is 46 ms. There are no replicas.
  2. 530 ms > 20 ms: it pays.
  3. At stake are 20 + 20 + 6.2 = 46.2 ms. The budget of 46 ms is less, but a
     fifth of the net saving is 106 ms, which is more: it is applied.

More: docs/costs.md.
)";

struct Topic {
  const char* name;
  const char* about;
  const char* page;
};
constexpr Topic kTopics[] = {
    {"costs", "how costs decide whether a new placement is applied", kCosts}};

std::string TopicList() {
  std::string list;
  for (const Topic& topic : kTopics) {
    absl::StrAppend(&list, list.empty() ? "" : ", ", topic.name, " (", topic.about, ")");
  }
  return list;
}

}  // namespace

Output RunHelp(const std::string& topic) {
  for (const Topic& one : kTopics) {
    if (topic == one.name) return {.exit_code = kOk, .out = one.page, .message = {}};
  }
  return Failure(kUsage, absl::InvalidArgumentError(absl::StrCat(
                             "no page on \"", topic, "\", expected one of: ", TopicList(),
                             "; eplbctl COMMAND --help tells a command's flags")));
}

void AddHelp(CLI::App& root, Command& command) {
  const auto topic = std::make_shared<std::string>();
  CLI::App& app = *root.add_subcommand("help", "Explain words of the output: " + TopicList());
  app.add_option("topic", *topic, "The page")->required()->type_name("TOPIC");
  app.footer("Exit codes: 0 ok, 2 no such page.");
  app.callback([topic, &command] {
    command = [topic](const Terminal& /*terminal*/) { return RunHelp(*topic); };
  });
}

}  // namespace eplb::cli
