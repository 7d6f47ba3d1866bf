//! Save and restore of a region (Conquest, 3.5; mramfs, 5.1).
