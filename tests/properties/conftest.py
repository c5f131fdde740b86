from tests.properties import profiles

profiles.load()
