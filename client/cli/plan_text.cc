#include "client/cli/plan_text.h"

#include "absl/strings/str_cat.h"

#include "proto/wire/message_json.h"

namespace eplb::cli {
namespace {

std::string ResultText(const v1::Plan& plan) {
  const uint32_t committed = plan.chunks_committed();
  return absl::StrCat(wire::EnumText(plan.result()),
                      committed == 0 || committed == plan.num_chunks()
                          ? ""
                          : absl::StrCat(" ", committed, "/", plan.num_chunks()));
}

}  // namespace

const CellWords& PlanWords() {
  static const CellWords* const words = new CellWords{{"result", InWords<v1::Plan>(ResultText)}};
  return *words;
}

std::string PlanReason(const v1::Plan& plan) {
  const std::string who =
      plan.asked_by().empty() ? "" : absl::StrCat(" (asked for by ", plan.asked_by(), ")");
  return Printable(absl::StrCat("plan ", plan.plan(), who, ": ", plan.reason()));
}

}  // namespace eplb::cli
