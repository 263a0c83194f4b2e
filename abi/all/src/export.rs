//! The symbols that libfabric and libdat2, and our own libfabric.so.1 and libdat.so.1, look up in a provider. The object is preloaded
//! as `libibverbs.so.1`, so its symbols take precedence over those of all libraries. They have a version of their own, so that other
//! providers still use their own symbols of the same names.

use rkey_kit::exports;

exports! { "__rkey_plugin_" "@@RKEY_1" {
    "fi_prov_ini" => rkey_fi::fi_prov_ini,
    "rkey_fi_open" => rkey_fi::open,
    "dat_provider_init" => daplrkey::export::dat_provider_init,
    "dat_provider_fini" => daplrkey::export::dat_provider_fini,
    "dapl_extensions" => daplrkey::export::dapl_extensions,
    "rkey_dat_provider" => daplrkey::export::rkey_dat_provider,
} }
