"""The probe: a folder that is copied into a trial and watches any PyTorch script from inside its ranks."""
