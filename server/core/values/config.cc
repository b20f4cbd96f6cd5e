#include "server/core/values/config.h"

#include <utility>

namespace eplb::core {

Settings SettingsOf(const Config& config, const std::string& job, const SettingsPatch& patch) {
  Settings settings = config.settings;
  if (const auto own = config.job_settings.find(job); own != config.job_settings.end()) {
    settings = wire::Patched(std::move(settings), own->second);
  }
  // One that another version of the daemon stored may name what this one does not have.
  return wire::CheckPatch(patch).ok() ? wire::Patched(std::move(settings), patch) : settings;
}

absl::Time UnknownPausesEnd(std::optional<absl::Duration> age, absl::Time now) {
  constexpr absl::Duration kUnknownMatters = absl::Hours(24);
  return age ? now + kUnknownMatters - *age : absl::InfinitePast();
}

}  // namespace eplb::core
