//! The script that undoes a transaction without netpolicy.
