"""How stator tells what it did: logs and explanations. Reads events; no stage imports it."""
