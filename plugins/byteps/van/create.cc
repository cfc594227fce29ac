// Puts the van into ps-lite's factory, Van::Create, whose types are a closed list, when a program is linked with
// --wrap=SYMBOL for the symbol below: its calls come here, and continue for other types. Where the linker cannot do
// that, one line in Van::Create does: `if (type == "mlt") return mlt::van::make_van();`.
#include <ps/internal/postoffice.h>

#include <cstdlib>
#include <string>
#include <string_view>

#include "van.h"

#define MLT_VAN_STRING "_ZN2ps3Van6CreateERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"

namespace mlt::van {

namespace {

bool is_selected(const std::string& type) {
  if (type == "mlt") return true;
  const char* van = std::getenv("DMLC_PS_VAN_TYPE");  // bytedance's trees do not read it
  return van != nullptr && std::string_view(van) == "mlt" && type == "zmq";
}

}  // namespace

// Each tree has one of the two functions; the other is never called, and refers to nothing.
ps::Van* real_create(const std::string& type) __asm__("__real_" MLT_VAN_STRING);
ps::Van* real_create_owned(const std::string& type,
                           ps::Postoffice* owner) __asm__("__real_" MLT_VAN_STRING "PNS_10PostofficeE");
ps::Van* create(const std::string& type) __asm__("__wrap_" MLT_VAN_STRING);
ps::Van* create_owned(const std::string& type,
                      ps::Postoffice* owner) __asm__("__wrap_" MLT_VAN_STRING "PNS_10PostofficeE");

template <typename... Owner>
ps::Van* make_or(auto real, const std::string& type, Owner*... owner) {
  if constexpr (kHasOwner == (sizeof...(Owner) == 1)) {
    return is_selected(type) ? make_van(owner...) : real(type, owner...);
  } else {
    return nullptr;
  }
}

ps::Van* create(const std::string& type) {
  return make_or([](const std::string& other) { return real_create(other); }, type);
}

ps::Van* create_owned(const std::string& type, ps::Postoffice* owner) {
  return make_or([](const std::string& other, ps::Postoffice* of) { return real_create_owned(other, of); }, type,
                 owner);
}

}  // namespace mlt::van
